"""Training of the target, the heads and the draft: float32, seeded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from tiny_models.bpe import EOS
from tiny_models.nets import Head, Llama
from tiny_models.world import Writer

Report = Callable[[str], None]


@dataclass(frozen=True)
class Phase:
    """``steps`` optimizer steps on batches of ``rows`` rows of ``length`` tokens."""

    steps: int
    rows: int
    length: int


def rows_of_text(tokenizer: Tokenizer, seed: int, length: int) -> Iterator[list[int]]:
    """Endless rows of exactly ``length`` token ids; each begins where a document begins, with ``<s>``."""
    documents = Writer(seed).documents()
    while True:
        row: list[int] = []
        while len(row) < length:
            row += tokenizer.encode(next(documents) + EOS).ids
        yield row[:length]


def batch_of(rows: Iterator[list[int]], count: int, device: torch.device) -> Tensor:
    """int64 ``[count, length]`` on ``device``."""
    return torch.tensor([next(rows) for _ in range(count)]).to(device)


def optimize(
    module: nn.Module, peak: float, phases: Iterable[Phase], loss_of: Callable[[Phase], Tensor], report: Report, name: str
) -> None:
    """Muon for the matrices inside layers, AdamW for the rest.

    Both warm up over a twentieth of the steps and come down on a cosine to a hundredth of ``peak``.
    """
    phases = list(phases)
    total = sum(phase.steps for phase in phases)
    inner, outer = [], []
    for label, weight in module.named_parameters():
        inside = weight.ndim == 2 and not label.startswith(("embed_tokens.", "lm_head."))
        (inner if inside else outer).append(weight)
    optimizers = (
        torch.optim.Muon(inner, lr=peak, momentum=0.95, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(outer, lr=peak, betas=(0.9, 0.95), weight_decay=0.01),
    )
    warm_up, done, recent = max(1, total // 20), 0, 0.0
    for phase in phases:
        for _ in range(phase.steps):
            share = min(1.0, (done + 1) / warm_up)
            rate = peak * share * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done / total)))
            loss = loss_of(phase)
            module.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.param_groups[0]["lr"] = rate
                optimizer.step()
            done += 1
            recent = loss.item() if done == 1 else 0.9 * recent + 0.1 * loss.item()
            if done % 50 == 0 or done == total:
                report(f"{name}: step {done} of {total}, loss {recent:.4f}")


def train_target(target: Llama, tokenizer: Tokenizer, phases: list[Phase], peak: float, seed: int, report: Report) -> None:
    """Next-token cross-entropy on the world's text."""
    streams = {length: rows_of_text(tokenizer, seed + length, length) for length in {phase.length for phase in phases}}

    def loss_of(phase: Phase) -> Tensor:
        tokens = batch_of(streams[phase.length], phase.rows, target.device)
        logits = target(tokens[:, :-1]).logits
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    optimize(target, peak, phases, loss_of, report, "target")


@torch.inference_mode()
def continue_greedily(target: Llama, prompts: Tensor, length: int) -> Tensor:
    """``prompts`` int64 ``[rows, n]`` carried on to ``[rows, length]`` with the target's first choice each time."""
    states = target(prompts)
    tokens, past, step = prompts, states.kept, states.logits[:, -1:].argmax(-1)
    while True:
        tokens = torch.cat((tokens, step), 1)
        if tokens.shape[1] == length:
            return tokens
        states = target(step, past)
        past, step = states.kept, states.logits.argmax(-1)


def own_text(
    target: Llama, tokenizer: Tokenizer, seed: int, batches: int, rows: int, length: int, report: Report
) -> Tensor:
    """int64 ``[batches * rows, length]``: the target's own greedy continuations of fresh openings.

    The heads are used on what the target writes, not on what the world wrote: they learn from it.
    """
    openings = rows_of_text(tokenizer, seed, length // 2)
    chooser = torch.Generator().manual_seed(seed)
    texts = []
    for _ in range(batches):
        size = int(torch.randint(8, length // 4, (1,), generator=chooser))
        texts.append(continue_greedily(target, batch_of(openings, rows, target.device)[:, :size], length))
    report(f"own text: {batches * rows} rows of {length} tokens")
    return torch.cat(texts).clone()


def shuffled(texts: Tensor, rows: int, seed: int) -> Iterator[Tensor]:
    """Endless batches ``[rows, length]`` in a new order each time round."""
    order = torch.Generator().manual_seed(seed)
    while True:
        for part in torch.randperm(len(texts), generator=order).split(rows):
            if len(part) == rows:
                yield texts[part]


def distance(guess: Tensor, wanted: Tensor) -> Tensor:
    """Cross-entropy of the target's distribution, from logits ``[..., vocab]``."""
    return -(wanted.softmax(-1) * guess.log_softmax(-1)).sum(-1).mean()


def train_head(
    head: Head, target: Llama, texts: Tensor, phases: list[Phase], peak: float, steps: int, seed: int, report: Report, name: str
) -> None:
    """Make every draft step of ``head`` guess what the target would say next, ``steps`` steps deep.

    From the second step on the head is fed its own output, as it will be when it serves.
    """
    batches = shuffled(texts, phases[0].rows, seed)

    def loss_of(phase: Phase) -> Tensor:
        tokens = next(batches)[:, : phase.length]
        with torch.no_grad():
            states = target(tokens)
        guesses = head(target, tokens, states, steps)
        wanted = states.logits[:, 1:]
        losses = [distance(guess[:, step:], wanted[:, step:]) for step, guess in enumerate(guesses)]
        return torch.stack(losses).mean()

    optimize(head, peak, phases, loss_of, report, name)


def train_draft(
    draft: Llama, target: Llama, texts: Tensor, phases: list[Phase], peak: float, seed: int, report: Report
) -> None:
    """Distil the target into a smaller model.

    SGLang's STANDALONE draft is never shown a prompt's first token, so half of the batches go without it.
    """
    batches = shuffled(texts, phases[0].rows, seed)
    coin = torch.Generator().manual_seed(seed)

    def loss_of(phase: Phase) -> Tensor:
        tokens = next(batches)[:, : phase.length]
        with torch.no_grad():
            wanted = target(tokens).logits
        skip = int(torch.randint(0, 2, (1,), generator=coin))
        return distance(draft(tokens[:, skip:]).logits, wanted[:, skip:])

    optimize(draft, peak, phases, loss_of, report, "draft")


