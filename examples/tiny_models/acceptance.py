"""How many tokens a verify step yields on the target's own greedy texts, worked out from the networks alone.

A head's guesses for a whole text come from one unrolled pass: step ``s`` at index ``p`` is what the head would say
had the guesses before it been right, and a chain ends at its first wrong guess anyway. So walking over the text, chain
by chain, gives the very accept lengths a server with ``topk`` 1 sees.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tiny_models.nets import Head, Llama


def accept_length(right: list[Tensor]) -> float:
    """Tokens per verify step over all rows.

    ``right[s]`` is bool ``[rows, places]``: whether draft step ``s`` guesses right when the last verified hidden state
    is that of the place. The first quarter of each row is taken for its prompt.
    """
    tokens = steps = 0
    for row in torch.stack(right, dim=-1).tolist():
        place = start = len(row) // 4
        while place < len(row):
            place += 1 + (row[place].index(False) if False in row[place] else len(right))
            steps += 1
        tokens += place - start
    return tokens / steps


@torch.inference_mode()
def of_head(head: Head, target: Llama, texts: Tensor, steps: int) -> float:
    """Accept length of ``head`` on ``texts`` int64 ``[rows, length]``."""
    states = target(texts)
    said = states.logits[:, 1:].argmax(-1)
    places = said.shape[1] - steps
    guesses = head(target, texts, states, steps)
    return accept_length([(guess.argmax(-1) == said)[:, s : s + places] for s, guess in enumerate(guesses)])


@torch.inference_mode()
def of_draft(draft: Llama, target: Llama, texts: Tensor, steps: int) -> float:
    """Accept length of a STANDALONE draft on ``texts``, of which it sees all but the first token."""
    said = target(texts).logits[:, 1:].argmax(-1)
    right = draft(texts[:, 1:]).logits.argmax(-1) == said
    places = said.shape[1] - steps
    return accept_length([right[:, s : s + places] for s in range(steps)])
