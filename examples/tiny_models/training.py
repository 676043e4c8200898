"""Training of the target, the heads and the draft: float32, seeded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

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


@dataclass(frozen=True)
class Recipe:
    """How one network is trained: ``peak`` is the highest learning rate, ``seed`` draws the batches."""

    phases: tuple[Phase, ...]
    peak: float
    seed: int


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


def shuffled(texts: Tensor, rows: int, seed: int) -> Iterator[Tensor]:
    """Endless batches ``[rows, length]`` of ``texts``, in a new order each time round."""
    order = torch.Generator().manual_seed(seed)
    while True:
        for part in torch.randperm(len(texts), generator=order).split(rows):
            if len(part) == rows:
                yield texts[part.to(texts.device)]


def optimize(module: nn.Module, recipe: Recipe, loss_of: Callable[[Phase], Tensor], report: Report, name: str) -> None:
    """Muon for the matrices inside layers, AdamW for the rest.

    Both warm up over a twentieth of the steps and come down on a cosine to a hundredth of the peak.
    """
    total = sum(phase.steps for phase in recipe.phases)
    inner: list[Tensor] = []
    outer: list[Tensor] = []
    for label, weight in module.named_parameters():
        inside = weight.ndim == 2 and not label.startswith(("embed_tokens.", "lm_head."))
        (inner if inside else outer).append(weight)
    optimizers = (
        torch.optim.Muon(inner, lr=recipe.peak, momentum=0.95, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(outer, lr=recipe.peak, betas=(0.9, 0.95), weight_decay=0.01),
    )
    warm_up, done, recent = max(1, total // 20), 0, 0.0
    for phase in recipe.phases:
        for _ in range(phase.steps):
            share = min(1.0, (done + 1) / warm_up)
            rate = recipe.peak * share * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done / total)))
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


def train_target(target: Llama, tokenizer: Tokenizer, recipe: Recipe, report: Report) -> None:
    """Next-token cross-entropy on the world's text."""
    lengths = {phase.length for phase in recipe.phases}
    streams = {length: rows_of_text(tokenizer, recipe.seed + length, length) for length in lengths}

    def loss_of(phase: Phase) -> Tensor:
        tokens = batch_of(streams[phase.length], phase.rows, target.device)
        logits = target(tokens[:, :-1]).logits
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    optimize(target, recipe, loss_of, report, "target")


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


def own_text(target: Llama, tokenizer: Tokenizer, seed: int, shape: tuple[int, int, int]) -> Tensor:
    """The target's own greedy continuations of fresh openings.

    ``shape`` is batches, rows of each and tokens of each row; the result int64 ``[batches * rows, tokens]``. The heads
    will draft what the target writes, not what the world wrote: they learn from it.
    """
    batches, rows, length = shape
    openings = rows_of_text(tokenizer, seed, length // 2)
    chooser = torch.Generator().manual_seed(seed)
    texts = []
    for _ in range(batches):
        size = int(torch.randint(8, length // 4, (1,), generator=chooser))
        texts.append(continue_greedily(target, batch_of(openings, rows, target.device)[:, :size], length))
    return torch.cat(texts).clone()


def distance(guess: Tensor, wanted: Tensor) -> Tensor:
    """Cross-entropy of the target's distribution, from logits ``[..., vocab]``."""
    return -(wanted.softmax(-1) * guess.log_softmax(-1)).sum(-1).mean()


def train_head(head: Head, target: Llama, texts: Tensor, recipe: Recipe, steps: int, report: Report, name: str) -> None:
    """Make each of ``steps`` draft steps of ``head`` guess what the target would say next on ``texts``.

    From the second step on the head is fed its own output, as it will be when it serves.
    """
    batches = shuffled(texts, recipe.phases[0].rows, recipe.seed)

    def loss_of(phase: Phase) -> Tensor:
        tokens = next(batches)[:, : phase.length]
        with torch.no_grad():
            states = target(tokens)
        guesses = head(target, tokens, states, steps)
        wanted = states.logits[:, 1:]
        return torch.stack([distance(guess[:, step:], wanted[:, step:]) for step, guess in enumerate(guesses)]).mean()

    optimize(head, recipe, loss_of, report, name)


def train_draft(draft: Llama, target: Llama, texts: Tensor, recipe: Recipe, report: Report) -> None:
    """Distil the target into a smaller model.

    SGLang's STANDALONE draft is never shown a prompt's first token, so half of the batches go without it.
    """
    batches = shuffled(texts, recipe.phases[0].rows, recipe.seed)
    coin = torch.Generator().manual_seed(recipe.seed)

    def loss_of(phase: Phase) -> Tensor:
        tokens = next(batches)[:, : phase.length]
        with torch.no_grad():
            wanted = target(tokens).logits
        skip = int(torch.randint(0, 2, (1,), generator=coin))
        return distance(draft(tokens[:, skip:]).logits, wanted[:, skip:])

    optimize(draft, recipe, loss_of, report, "draft")
