"""The parts of a return beside the batch come to an end, whatever the batch and the pause."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from cases import Case, cases
from switching import Request, Scenario, assert_same_answers, open_switched, plain_answers, run

from specswitch.cpu_engine import environment
from specswitch.engine.draft_gap import set_gap
from specswitch.engine.pause import PauseBudget, Waits
from specswitch.signals import Mode

pytestmark = pytest.mark.real

TURNS = 150
WANTED = {"eagle-topk1-v1-page16", "eagle-topk1-overlap-page16"}


def beside(max_pause_ms: float) -> Any:
    """The parts of an engine whose forwards take no time, and do nothing."""
    environment.activate(strict=True)
    from specswitch.engine.beside import CatchUpBeside

    class Engine(CatchUpBeside):
        def write_draft_kv(self, ranges: Any, alone: bool = False) -> None:
            assert sum(end - start for _, start, end in ranges) <= max(self._pause.sizes)

        def _interrupted(self) -> None: ...

        def _after_launches(self) -> AbstractContextManager[None]:
            return nullcontext()

    made = Engine()  # type: ignore[abstract]
    made._prepare_beside(max_pause_ms, 8192, alone=None, overlap=True, ranks=1)
    return made


def request(missing: int, prompt: int) -> Any:
    made = SimpleNamespace(
        origin_input_ids=range(prompt),
        output_ids=range(500),
        sampling_params=SimpleNamespace(max_new_tokens=10**6),
        cache_protected_len=0,
        finished=lambda: False,
    )
    set_gap(made, prompt + len(made.output_ids) - missing)
    return made


@pytest.mark.parametrize("max_pause_ms", [25.0, 30.0, 50.0])
@pytest.mark.parametrize("times", [1.0, 3.0, 1000.0])
def test_parts_get_on_faster_than_the_plain_steps_between_them(max_pause_ms: float, times: float) -> None:
    dice = random.Random(7)
    for size in [*range(1, 60, 3), *range(60, 300, 20)]:
        engine = beside(max_pause_ms)
        if not engine._pause.keeps_up(size):
            continue
        engine._pause.in_force = Waits(20.0 * times, 0.022 * times, engine._pause.sizes[-1])
        # of some, nothing before the gap may be written again
        reqs = [request(dice.randint(20, 200), dice.choice((50, 1000))) for _ in range(size)]
        for _ in range(TURNS):
            if not engine._is_more_than_a_pause(reqs):
                break
            engine._catch_up_aside(reqs)
            for req in reqs:
                req.output_ids = range(len(req.output_ids) + 1)
        else:
            pytest.fail(f"{size} requests have not returned after {TURNS} turns")


@pytest.mark.parametrize("case", [case for case in cases() if str(case) in WANTED], ids=str)
def test_a_return_of_many_requests_with_a_short_pause(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PauseBudget, "waited", lambda *waited: None)  # the model here is too fast to need parts
    dice, seen = random.Random(5), []
    requests = [
        Request(f"r{index}", [1, 40 + index, 7, 9, *(dice.randrange(4, 250) for _ in range(index + 1))], 150)
        for index in range(16)
    ]

    def wish(turn: int, mode: Mode) -> Mode:
        seen.append(mode)
        return Mode.PLAIN if turn in range(25, 55) else Mode.SPECULATIVE

    flags = ["--specswitch-max-pause-ms", "25"]
    with open_switched(**case.options, flags=flags, max_total_tokens=40_000, max_running_requests=16) as server:
        outcome = run(server, Scenario(requests, wish))
    assert seen.count(Mode.PLAIN) < 90
    assert outcome.switches == 2
    assert_same_answers(outcome, plain_answers(requests, max_total_tokens=40_000, max_running_requests=16))
