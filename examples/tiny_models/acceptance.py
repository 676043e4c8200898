"""How many tokens a verify step yields, worked out from the networks alone.

A head's guesses for a whole text come from one unrolled pass: step ``s`` at index ``p`` is what the head would say
had the guesses before it been right, and a chain ends at its first wrong guess anyway. So walking over the text, chain
by chain, gives the very accept lengths a server with ``topk`` 1 sees.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tiny_models.nets import Head, Llama


def accept_length(guesses: list[list[bool]], start: int) -> tuple[int, int]:
    """Tokens and verify steps of one walk.

    ``guesses[s][p]`` says whether draft step ``s`` guesses the token at ``p + s + 2`` right, when the last verified
    hidden state is that of position ``p``; ``start`` is the first such ``p``.
    """
    place, steps, end = start, 0, len(guesses[0]) - len(guesses)
    while place < end:
        right = 0
        while right < len(guesses) and guesses[right][place]:
            right += 1
        place += right + 1
        steps += 1
    return place - start, steps


def _share(right: list[Tensor], start: int) -> float:
    tokens = steps = 0
    for row in range(len(right[0])):
        got, took = accept_length([step[row].tolist() for step in right], start)
        tokens, steps = tokens + got, steps + took
    return tokens / steps


@torch.inference_mode()
def of_head(head: Head, target: Llama, texts: Tensor, start: int, steps: int) -> float:
    """Tokens per verify step of ``head`` on the target's own greedy ``texts`` int64 ``[rows, length]``."""
    states = target(texts)
    said = states.logits[:, 1:].argmax(-1)
    length = said.shape[1] - steps
    guesses = head(target, texts, states, steps)
    return _share([(g.argmax(-1) == said)[:, s : s + length] for s, g in enumerate(guesses)], start)


@torch.inference_mode()
def of_draft(draft: Llama, target: Llama, texts: Tensor, start: int, steps: int) -> float:
    """The same for a STANDALONE draft, shown all tokens but the first."""
    said = target(texts).logits[:, 1:].argmax(-1)
    right = draft(texts[:, 1:]).logits.argmax(-1) == said
    length = said.shape[1] - steps
    return _share([right[:, s : s + length] for s in range(steps)], start)
