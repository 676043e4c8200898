"""The embedded models: real acceptance, the same answers as plain decode, the same again when run again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest
from tokenizers import Tokenizer

from specswitch.cpu_engine.inprocess import InProcessScheduler
from specswitch.cpu_engine.prompts import PROMPTS
from specswitch.cpu_engine.releases import DEFAULT_MODELS, installed_release

pytestmark = pytest.mark.real

NEW_TOKENS = 96
LEAST_ACCEPT_LENGTH = 1.8


@dataclass(frozen=True)
class Answers:
    tokens: dict[str, list[int]]
    verify_steps: dict[str, int]
    """Per request, SGLang's own count; 0 for plain decode."""

    @property
    def accept_length(self) -> float:
        """Tokens per verify step; each answer's first token comes from the prefill."""
        return sum(len(ids) - 1 for ids in self.tokens.values()) / sum(self.verify_steps.values())


def answers(mode: str) -> Answers:
    tokenizer = Tokenizer.from_file(str(DEFAULT_MODELS / "target" / "tokenizer.json"))
    requests = {}
    with InProcessScheduler(mode) as scheduler:
        for index, prompt in enumerate(PROMPTS):
            scheduler.add(str(index), tokenizer.encode(prompt).ids, NEW_TOKENS)
        while not scheduler.idle:
            scheduler.step()
            for rid, output in scheduler.outputs().items():
                if rid not in requests and output.output_ids and not output.finished:
                    requests[rid] = scheduler.request(rid)
        scheduler.run_until_idle()
        return Answers(scheduler.output_ids(), {rid: req.spec_verify_ct for rid, req in requests.items()})


@cache
def plain() -> Answers:
    return answers(next(name for name, mode in installed_release().modes.items() if not mode.arguments))


def chain_mode(algorithm: str) -> str:
    """The installed release's mode of that algorithm with topk 1, steps 3 and 4 draft tokens, without overlap."""
    wanted = {
        "speculative_algorithm": algorithm,
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
    }
    return next(
        name for name, mode in installed_release().modes.items() if dict(mode.arguments) == wanted and not mode.overlap
    )


@pytest.mark.parametrize("algorithm", ["EAGLE", "EAGLE3", "STANDALONE"])
def test_drafts_are_accepted_and_change_no_answer(algorithm: str) -> None:
    speculative = answers(chain_mode(algorithm))

    assert speculative.tokens == plain().tokens
    assert all(speculative.verify_steps.values())
    assert LEAST_ACCEPT_LENGTH <= speculative.accept_length <= 4.0


def test_a_second_run_is_the_same() -> None:
    mode = chain_mode("EAGLE")

    assert answers(mode) == answers(mode)


def test_answers_differ_and_do_not_fall_into_a_short_loop() -> None:
    tokens = plain().tokens

    assert len({tuple(ids) for ids in tokens.values()}) == len(PROMPTS)
    for ids in tokens.values():
        tail = ids[NEW_TOKENS // 2 :]
        assert not any(tail[period:] == tail[:-period] for period in range(1, len(tail) // 2))
