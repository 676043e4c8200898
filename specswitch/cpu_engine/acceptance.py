"""How many tokens a verify step yields on the embedded models, on the real SGLang in this process.

``python -m specswitch.cpu_engine.acceptance`` measures every chain of the installed release on
:data:`~specswitch.cpu_engine.prompts.PROMPTS` and compares the answers with plain decode's; modes may be named.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specswitch.cpu_engine import environment
from specswitch.cpu_engine.inprocess import InProcessScheduler
from specswitch.cpu_engine.prompts import PROMPTS
from specswitch.cpu_engine.releases import DEFAULT_MODELS


@dataclass(frozen=True, slots=True)
class Answers:
    """What one mode answered to the prompts."""

    tokens: list[list[int]]
    """Output token ids of each prompt."""
    verify_steps: list[int]
    """Verify steps of each prompt by SGLang's own count (``Req.spec_verify_ct``); 0 for plain decode."""

    @property
    def accept_length(self) -> float | None:
        """Tokens per verify step, None for plain decode. An answer's first token comes from its prefill."""
        steps = sum(self.verify_steps)
        return sum(len(ids) - 1 for ids in self.tokens) / steps if steps else None


def answers(mode: str, new_tokens: int, models: Path = DEFAULT_MODELS) -> Answers:
    """Let ``mode`` carry on every prompt greedily by ``new_tokens`` tokens; raises as
    :class:`~specswitch.cpu_engine.inprocess.InProcessScheduler` does."""
    with InProcessScheduler(mode, models) as scheduler:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(models / "target" / "tokenizer.json"))
        for index, prompt in enumerate(PROMPTS):
            scheduler.add(str(index), tokenizer.encode(prompt).ids, new_tokens)
        scheduler.step()
        # a finished request cannot be looked up any more, so all are while they still wait or run
        requests: list[Any] = [scheduler.request(str(index)) for index in range(len(PROMPTS))]
        scheduler.run_until_idle()
        outputs = scheduler.output_ids()
        return Answers(
            [outputs[str(index)] for index in range(len(PROMPTS))], [request.spec_verify_ct for request in requests]
        )


def main() -> None:
    """Print the accept length of each mode and whether its answers are plain decode's; exit status 1 if any differ."""
    parser = argparse.ArgumentParser(prog="python -m specswitch.cpu_engine.acceptance", description=main.__doc__)
    parser.add_argument("modes", nargs="*", metavar="MODE", help="modes to measure (default: all with topk 1)")
    parser.add_argument("--new-tokens", type=int, default=200, help="tokens to add to each prompt (default: 200)")
    parser.add_argument("--models", type=Path, default=DEFAULT_MODELS, help="folder of the models")
    options = parser.parse_args()
    release = environment.activate()
    chains = [name for name, mode in release.modes.items() if mode.arguments.get("speculative_eagle_topk") == 1]
    plain = answers("plain", options.new_tokens, options.models)
    all_same = True
    for mode in options.modes or chains:
        found = answers(mode, options.new_tokens, options.models)
        same = sum(ours == theirs for ours, theirs in zip(found.tokens, plain.tokens, strict=True))
        all_same &= same == len(PROMPTS)
        length = found.accept_length
        print(
            f"SGLang {release.version} {mode}: {'-' if length is None else f'{length:.2f}'} tokens per verify step, "
            f"{same} of {len(PROMPTS)} answers equal to plain decode's",
            flush=True,
        )
    raise SystemExit(0 if all_same else 1)


if __name__ == "__main__":
    main()
