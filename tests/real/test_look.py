"""A return that catches up a sample alone: the others stay as they were, and are caught up by the next one."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from cases import Case, draft_kv_cases
from switching import Request, Scenario, assert_same_answers, open_switched, plain_answers, run

from specswitch.engine.draft_gap import gap_of
from specswitch.policy import Wish
from specswitch.signals import LoadSample, Mode, SampleLook

pytestmark = pytest.mark.real

REQUESTS, SAMPLED = 6, 2
LOOK_STEPS = 9


@dataclass
class _Course:
    """PLAIN for a while, a look at two, PLAIN again, and a return of all."""

    server: Any
    looks: list[SampleLook] = field(default_factory=list)
    gaps: list[tuple[Mode, dict[str, int | None]]] = field(default_factory=list)
    """By request, as each turn begins."""

    def __call__(self, sample: LoadSample) -> Wish:
        reqs = self.server.scheduler.running_batch.reqs
        self.gaps.append((sample.mode, {req.rid: gap_of(req) for req in reqs if not req.finished()}))
        if sample.look is not None:
            self.looks.append(sample.look)
            if sample.look.steps < LOOK_STEPS:
                return Wish(Mode.SPECULATIVE, "looking", sampled=SAMPLED)
            return Wish(Mode.PLAIN, "looked")
        if self.looks:
            return Wish(Mode.SPECULATIVE, "all")
        if sample.mode is Mode.PLAIN and sample.steps_in_mode >= 15:
            return Wish(Mode.SPECULATIVE, "look", sampled=SAMPLED)
        far = sample.decode_step >= 8 or sample.mode is not Mode.SPECULATIVE
        return Wish(Mode.PLAIN if far else Mode.SPECULATIVE, "plain")


@pytest.mark.parametrize("case", draft_kv_cases(), ids=str)
def test_the_others_wait_for_the_return_of_all(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--specswitch-log-format", "json", "--specswitch-max-pause-ms", "1000"]
    requests = [Request(f"r{index}", [1, 40 + index, 7, 9, 60 + index], 240) for index in range(REQUESTS)]
    with open_switched(**case.options, flags=flags, max_total_tokens=4096, max_running_requests=8) as server:
        switch = server.scheduler.specswitch
        switch.policy = course = _Course(server)
        outcome = run(server, Scenario(requests))
        stats = switch.engine.draft_stats
    assert not switch.faulted
    assert outcome.switches == 4
    assert_same_answers(outcome, plain_answers(requests, max_total_tokens=4096, max_running_requests=8))

    left_out = REQUESTS - SAMPLED
    assert {look.left_out for look in course.looks} == {left_out}
    assert stats.requests_left_out == left_out
    assert (stats.tokens_skipped, stats.requests_not_worth_it) == (0, 0)
    _check_gaps(course, left_out)

    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    look, of_all = (line for line in lines if line["event"] == "specswitch.reentry")
    assert (look["requests_left_out"], of_all["requests_left_out"]) == (left_out, 0)
    assert look["tokens_caught_up"] < of_all["tokens_caught_up"]
    last = course.looks[-1]
    assert last.steps >= LOOK_STEPS
    assert len(last.accept_lengths) == SAMPLED
    assert all(1 <= length <= switch.engine.facts.num_draft_tokens for length in last.accept_lengths)
    assert look["accept_length"] == pytest.approx(sum(last.accept_lengths) / SAMPLED, abs=0.5)


def _check_gaps(course: _Course, left_out: int) -> None:
    """Open at one place through the look for those left out, closed for the sample; closed for all after the return."""
    looking = [
        turn for turn, (mode, gaps) in enumerate(course.gaps) if mode is Mode.SPECULATIVE and _open(gaps) == left_out
    ]
    assert len(looking) >= LOOK_STEPS
    opened = next(gaps for mode, gaps in course.gaps if mode is Mode.PLAIN)
    for turn in looking:
        assert all(gap in (None, opened[rid]) for rid, gap in course.gaps[turn][1].items())
    again = next(gaps for mode, gaps in course.gaps[looking[-1] :] if mode is Mode.PLAIN)
    assert _open(again) == REQUESTS
    assert sum(again[rid] == opened[rid] for rid in again) == left_out
    assert _open(course.gaps[-1][1]) == 0


def _open(gaps: dict[str, int | None]) -> int:
    return sum(gap is not None for gap in gaps.values())
