"""The figures about a return to SPECULATIVE are those that the requests' own counters give."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cases import Case, cases
from switching import Request, Scenario, open_switched, run

from specswitch.engine.draft_gap import gap_of
from specswitch.engine.reentry import FIRST_STEPS
from specswitch.signals import Mode

pytestmark = pytest.mark.real

WANTED = {"eagle-topk4-v1-page1", "eagle-v2-page1", "eagle-topk1-overlap-page1", "eagle-topk4-no-overlap-page1"}
REQUESTS = 3
FEW_STEPS = 10


class _Course:
    """There and back, on for more than the first steps, there and back for a few, and there and back at last."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._reqs: dict[str, Any] = {}
        self._stays = 0
        self._mode = Mode.SPECULATIVE
        self._since = 0
        self._began = (0, 0)
        self.measured: list[dict[int, float]] = []
        """For each stay in SPECULATIVE the accept length after each number of verify steps."""

    def __call__(self, turn: int, mode: Mode) -> Mode:
        for req in self._server.scheduler.running_batch.reqs:
            self._reqs[req.rid] = req
        verified = sum(req.spec_verify_ct for req in self._reqs.values())
        correct = sum(req.spec_num_correct_drafts for req in self._reqs.values())
        if mode is not self._mode and mode is not Mode.DRAINING:
            self._mode, self._since = mode, turn
            if mode is Mode.SPECULATIVE:
                self._stays += 1
                self._began = (verified, correct)
                self.measured.append({})
        if self._mode is Mode.SPECULATIVE and self.measured and verified > self._began[0]:
            request_steps = verified - self._began[0]
            self.measured[-1][request_steps // REQUESTS] = 1 + (correct - self._began[1]) / request_steps
        steps = (verified - self._began[0]) // REQUESTS
        if self._mode is Mode.PLAIN:
            return Mode.SPECULATIVE if turn - self._since >= 12 else Mode.PLAIN
        goal = {0: 6, 1: FIRST_STEPS + 5, 2: FEW_STEPS}.get(self._stays)
        return Mode.PLAIN if goal is not None and steps >= goal else Mode.SPECULATIVE


@pytest.mark.parametrize("case", [case for case in cases() if str(case) in WANTED], ids=str)
def test_the_figures_after_a_return(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--specswitch-log-format", "json", "--specswitch-max-pause-ms", "1000"]
    made = [Request(f"r{index}", [1, 40 + index, 7, 9, 60 + index], 500) for index in range(REQUESTS)]
    with open_switched(**case.options, flags=flags, max_total_tokens=4096) as server:
        course = _Course(server)
        outcome = run(server, Scenario(made, course))
        shown = server.scheduler.specswitch.engine._draft_kv_status()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    events = [line for line in lines if line["event"] == "specswitch.reentry"]
    assert outcome.switches == 6
    assert len(course.measured) == 3

    assert [event["requests"] for event in events] == [REQUESTS] * 3
    full, short, last = events
    assert full["verify_steps"] == FIRST_STEPS
    assert full["accept_length"] == round(course.measured[0][FIRST_STEPS], 3)
    # draining verifies on by what was in flight
    assert FEW_STEPS <= short["verify_steps"] <= FEW_STEPS + 1
    assert short["accept_length"] == round(course.measured[1][short["verify_steps"]], 3)
    assert all(event["tokens_caught_up"] >= REQUESTS * 11 and not event["tokens_skipped"] for event in events)
    assert last["long_run_accept_length"] > 1

    reentry = shown["reentry"]
    assert reentry["returns_measured"] == 3
    assert reentry["latest"] == {name: last[name] for name in reentry["latest"]}
    mean = sum(event["accept_length"] for event in events) / 3
    assert reentry["mean_accept_length"] == pytest.approx(mean, abs=1e-3)
    assert shown["tokens_missed"] == shown["tokens_caught_up"] == sum(event["tokens_caught_up"] for event in events)
    assert shown["seconds_catching_up"] > 0
    print(case, shown)


@pytest.mark.parametrize(("requests", "kept"), [(24, 0), (24, 64), (16, 0)])
@pytest.mark.parametrize("case", [case for case in cases() if str(case) in WANTED], ids=str)
def test_a_pause_too_short_for_the_batch_does_not_keep_it_from_returning(case: Case, requests: int, kept: int) -> None:
    """One that allows for 32 tokens, where so many requests put out as many in each plain step between two forwards."""
    flags = ["--specswitch-max-pause-ms", "1", "--specswitch-draft-kv-budget", str(kept)]
    made = [Request(f"r{index}", [1, 40 + index, 7, 9, 60 + index], 120) for index in range(requests)]
    with open_switched(**case.options, flags=flags, max_total_tokens=16384, max_running_requests=24) as server:
        outcome = run(server, Scenario(made, lambda turn, _: (Mode.SPECULATIVE, Mode.PLAIN)[10 <= turn < 40]))
    assert outcome.switches == 2
    assert outcome.steps["PLAIN DECODE plain"] < 40
    assert outcome.steps["SPECULATIVE DECODE spec"] > 20


@pytest.mark.parametrize(("phase", "preempts"), [(0, False), (1, False), (0, True), (1, True)])
@pytest.mark.parametrize("case", [case for case in cases() if str(case) in WANTED], ids=str)
def test_prefills_in_every_second_turn_hold_up_neither_a_return_nor_its_requests(
    case: Case, phase: int, preempts: bool
) -> None:
    first = [Request(f"a{index}", [1, 40 + index, 7, 9], 100) for index in range(2)]
    more = [Request(f"b{turn}", [1, 30 + turn, 8, 50 + turn], 4, turn) for turn in range(10 + phase, 80, 2)]
    back: list[int] = []

    def wish(turn: int, mode: Mode) -> Mode:
        if turn > 30 and mode is Mode.SPECULATIVE:
            back.append(turn)
        return (Mode.SPECULATIVE, Mode.PLAIN)[5 <= turn < 30]

    options = {**case.options, "enable_priority_scheduling": preempts}
    with open_switched(**options, max_total_tokens=16384, max_running_requests=64) as server:
        assert server.scheduler.enable_priority_preemption is preempts
        run(server, Scenario([*first, *more], wish))
    assert back[0] <= 37


@pytest.mark.parametrize("case", [case for case in cases() if str(case) in WANTED], ids=str)
def test_a_prefill_that_no_plain_step_followed_has_missed_nothing(case: Case) -> None:
    """It comes to an empty server in PLAIN, which returns while it is under way."""
    gaps = set()
    with open_switched(**case.options, max_total_tokens=16384) as server:

        def wish(turn: int, mode: Mode) -> Mode:
            if mode is Mode.SPECULATIVE and "x" in server.outputs():
                gaps.update(gap_of(req) for req in server.scheduler.running_batch.reqs)
            return Mode.SPECULATIVE if 1 <= turn < 30 or turn >= 34 else Mode.PLAIN

        run(server, Scenario([Request("w", [1, 5, 6, 7], 12)], lambda turn, mode: Mode.PLAIN))
        outcome = run(server, Scenario([Request("x", list(range(1, 21)), 150)], wish))
        shown = server.scheduler.specswitch.engine._draft_kv_status()
    assert gaps == {None}
    # the token that was pending counts as missed
    assert shown["tokens_missed"] <= outcome.steps["PLAIN DECODE plain"] + 2


@pytest.mark.parametrize("case", [case for case in cases() if str(case) in WANTED], ids=str)
def test_a_prefill_after_a_return_does_not_take_the_slots_of_the_first_verify_step(case: Case) -> None:
    """The pool has room for only one of the two, and the first requests finish with that step."""
    caught_up: dict[Mode, int] = {}
    with open_switched(**case.options, flags=["--specswitch-max-pause-ms", "1000"], max_total_tokens=160) as server:
        for arrival in range(19, 26):
            made = [Request(f"{arrival}-{index}", [1, 40 + index, 7, 9, 60 + index], 23) for index in range(4)]
            late = Request(f"{arrival}-late", [1, *[70 + arrival] * 29], 2, arrival)
            outcome = run(
                server, Scenario([*made, late], lambda turn, _: (Mode.SPECULATIVE, Mode.PLAIN)[2 <= turn < 20])
            )
            assert not outcome.pressed_in, arrival
            prefilled_in = Mode.PLAIN if outcome.prefilled_in[Mode.PLAIN] else Mode.SPECULATIVE
            caught_up[prefilled_in] = outcome.status["last_transition"]["tokens_caught_up"]
    assert Mode.PLAIN in caught_up
    assert caught_up[Mode.SPECULATIVE]


@pytest.mark.parametrize("case", [case for case in cases() if str(case) in WANTED], ids=str)
def test_what_the_draft_writes_alone_in_parts_does_not_put_the_return_off(case: Case) -> None:
    """While the last requests are written, the first ones miss a few tokens again."""
    flags = ["--specswitch-max-pause-ms", "7", "--specswitch-draft-kv-budget", "64"]
    made = [Request(f"r{index}", [1, 40 + index, 7, 9, 60 + index], 220) for index in range(12)]
    with open_switched(**case.options, flags=flags, max_total_tokens=16384, max_running_requests=24) as server:
        outcome = run(server, Scenario(made, lambda turn, _: (Mode.SPECULATIVE, Mode.PLAIN)[4 <= turn < 84]))
        shown = server.scheduler.specswitch.engine._draft_kv_status()
    assert outcome.switches == 2
    assert shown["tokens_written_alone"] > 600
    assert shown["asides"] >= 3
    assert outcome.steps["PLAIN DECODE plain"] < 80 + 20


@pytest.mark.parametrize("case", [case for case in cases() if str(case) in WANTED], ids=str)
def test_a_wait_in_which_a_prefill_came_is_not_counted(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on when a result is processed, as results of a GPU come when their forward has run."""
    now = 0.0
    made = [Request(f"a{index}", [1, 40 + index, 7, 9, *range(5, 25)], 300) for index in range(3)]
    late = [Request(f"b{turn}", [1, 30 + turn, 8, 50, *range(9, 40)], 60, turn) for turn in (125, 129)]
    with open_switched(**case.options, flags=["--specswitch-max-pause-ms", "1"], max_total_tokens=16384) as server:
        engine = server.scheduler.specswitch.engine
        engine._wait._clock = lambda: now
        process = server.scheduler.process_batch_result

        def processed(batch: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal now
            prefills = batch.forward_mode.is_extend() and [req.rid[0] for req in batch.reqs] == ["b"]
            now += 5.0 if prefills else 0.01
            return process(batch, *args, **kwargs)

        monkeypatch.setattr(server.scheduler, "process_batch_result", processed)
        outcome = run(server, Scenario([*made, *late], lambda turn, _: (Mode.SPECULATIVE, Mode.PLAIN)[4 <= turn < 120]))
        shown = engine._draft_kv_status()
    assert outcome.prefilled_in[Mode.PLAIN] >= 2
    assert 0 < shown["reentry"]["latest"]["longest_wait_ms"] <= 30
