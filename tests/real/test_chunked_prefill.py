"""Prompts that are prefilled in parts while the mode changes."""

from __future__ import annotations

import random

import pytest
from cases import Case, typical_cases
from switching import Request, Scenario, assert_same_answers, every, open_switched, plain_answers, run

from specswitch.cpu_engine.inprocess import Output
from specswitch.signals import Mode

pytestmark = pytest.mark.real

CHUNK = 32


def long_prompts() -> list[Request]:
    dice = random.Random(31)
    lengths = (150, 20, 97, 64, 130, 90)
    modes = (None, None, Mode.PLAIN, Mode.SPECULATIVE, Mode.PLAIN, Mode.SPECULATIVE)
    return [
        Request(f"long-{index}", [1] + [dice.randrange(4, 250) for _ in range(length - 1)], 36, 3 * index, mode)
        for index, (length, mode) in enumerate(zip(lengths, modes, strict=True))
    ]


@pytest.fixture(scope="module")
def plain() -> dict[str, Output]:
    return plain_answers(long_prompts())


@pytest.mark.parametrize("case", typical_cases(), ids=str)
@pytest.mark.parametrize("turns", [4, 7])
def test_chunks_across_switches(case: Case, turns: int, plain: dict[str, Output]) -> None:
    with open_switched(**case.options, chunked_prefill_size=CHUNK) as server:
        outcome = run(server, Scenario(long_prompts(), every(turns), retract_in=frozenset({Mode.PLAIN})))
    assert_same_answers(outcome, plain)
    assert outcome.switches >= 4
    assert {Mode.SPECULATIVE, Mode.PLAIN} <= set(outcome.prefilled_in)
    assert outcome.prefilled_in.total() >= sum(len(request.input_ids) for request in long_prompts()) / CHUNK
