"""Train the tiny models the embedded CPU engine serves.

``python examples/train_tiny_models.py --out specswitch/cpu_engine/models``

writes ``target``, ``eagle``, ``eagle3`` and ``draft`` below the given folder, each a checkpoint SGLang loads. It needs
torch (2.9 or later), tokenizers and safetensors, which SGLang brings along; no data and no network. Text, weights and
the order of training come from ``--seed``: on the CPU the same seed, kind of processor and torch give the same files.
It prints the losses and the accept lengths worked out offline. One CPU core needs about 40 minutes, a GPU a few.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from dataclasses import replace
from pathlib import Path

import torch
from tiny_models import acceptance, bpe, export, nets, training, world
from tiny_models.training import Phase, Recipe

TARGET = nets.Shape(
    vocab_size=bpe.VOCAB_SIZE,
    hidden_size=128,
    intermediate_size=384,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
)
ONE_LAYER = replace(TARGET, num_hidden_layers=1)
EAGLE3_LAYERS = [0, 1, 2]
"""Target layers whose outputs the EAGLE3 head is fed. SGLang's default needs more layers than the target has."""

TARGET_PHASES = (Phase(600, 24, 256), Phase(400, 8, 1024), Phase(200, 4, 2048))
"""Short rows first, because they teach most for the time; without the long ones nothing holds beyond their length."""
DRAFTING_PHASES = (Phase(100, 12, 512),)
"""For the heads and the draft, which stop early on purpose: trained to the end they guess nearly everything right on
text as regular as this, and hardly a draft token would ever be rejected."""
DRAFT_STEPS = 3
UNROLLED_STEPS = 4


def main() -> None:
    """Read the command line, train everything, write it."""
    parser = argparse.ArgumentParser(description="Train the tiny models the embedded CPU engine serves.")
    parser.add_argument("--out", type=Path, required=True, help="folder for target, eagle, eagle3 and draft")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="torch device to train on")
    options = parser.parse_args()
    # cuBLAS needs it for the same result every time
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    train_all(options.out, options.seed, torch.device(options.device))


def train_all(out: Path, seed: int, device: torch.device) -> None:
    """Train target, heads and draft one after the other and write each as soon as it is done."""
    started = time.perf_counter()

    def report(line: str) -> None:
        print(f"{time.perf_counter() - started:6.0f} s  {line}", flush=True)

    torch.manual_seed(seed)
    base = 1000 * seed
    tokenizer = bpe.train(itertools.islice(world.Writer(base).documents(), 3000))
    target = nets.Llama(TARGET).to(device)
    eagle = nets.Eagle(ONE_LAYER, target).to(device)
    eagle3 = nets.Eagle3(ONE_LAYER, len(EAGLE3_LAYERS)).to(device)
    draft = nets.Llama(ONE_LAYER).to(device)

    training.train_target(target, tokenizer, Recipe(TARGET_PHASES, 5e-3, base + 1), report)
    nets.round_to_bfloat16(target)
    target.requires_grad_(False)
    export.save_llama(target, out / "target", tokenizer)

    texts = training.own_text(target, tokenizer, base + 2, (8, 64, 512))
    unseen = training.own_text(target, tokenizer, base + 3, (1, 64, 512))
    report(f"{len(texts)} texts of the target's own to learn from, {len(unseen)} to measure on")

    def report_acceptance(name: str, length: float) -> None:
        report(f"{name}: {length:.2f} tokens per verify step with {DRAFT_STEPS} draft steps")

    for head, name in ((eagle, "eagle"), (eagle3, "eagle3")):
        training.train_head(head, target, texts, Recipe(DRAFTING_PHASES, 6e-3, base + 4), UNROLLED_STEPS, report, name)
        nets.round_to_bfloat16(head)
        report_acceptance(name, acceptance.of_head(head, target, unseen, DRAFT_STEPS))
    export.save_eagle(eagle, ONE_LAYER, out / "eagle", tokenizer)
    export.save_eagle3(eagle3, ONE_LAYER, EAGLE3_LAYERS, out / "eagle3", tokenizer)

    training.train_draft(draft, target, texts, Recipe(DRAFTING_PHASES, 6e-3, base + 5), report)
    nets.round_to_bfloat16(draft)
    report_acceptance("draft", acceptance.of_draft(draft, target, unseen, DRAFT_STEPS))
    export.save_llama(draft, out / "draft", tokenizer)


if __name__ == "__main__":
    main()
