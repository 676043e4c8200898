from __future__ import annotations

from specswitch.engine.pause import PauseWatch
from specswitch.engine.reentry import FIRST_STEPS, Reentry, ReentryRecord


class Told(Reentry):
    def __init__(self) -> None:
        super().__init__(PauseWatch(True))
        self.records: list[ReentryRecord] = []
        self.report = self.records.append

    def steps(self, count: int, tokens: int, requests: int = 2) -> None:
        for _ in range(count):
            self.verified(tokens, requests)


def test_the_first_steps_after_a_return_are_told_from_all_others() -> None:
    reentry = Told()
    reentry.steps(10, tokens=6)
    reentry.left()
    reentry.covered(40)
    assert reentry.caught_up(8, skipped=5, not_worth_it=1, left_out=0) == 53
    reentry.returned(2)
    reentry.steps(FIRST_STEPS - 1, tokens=3)
    assert not reentry.records
    reentry.steps(1, tokens=3)
    assert reentry.records == [ReentryRecord(2, 48, 5, 1, FIRST_STEPS, 1.5, 3.0, 0.0)]
    reentry.steps(10, tokens=4)
    assert len(reentry.records) == 1
    assert reentry.as_dict() == {
        "latest": reentry.records[0].as_dict(),
        "returns_measured": 1,
        "mean_accept_length": 1.5,
        "long_run_accept_length": 2.5,
    }


def test_what_is_told_after_the_return_counts_as_well() -> None:
    reentry = Told()
    reentry.left()
    reentry.returned(2)
    reentry.caught_up(8, skipped=0, not_worth_it=0, left_out=0)
    reentry.steps(FIRST_STEPS, tokens=4)
    assert (reentry.records[0].requests, reentry.records[0].tokens_caught_up) == (2, 8)


def test_plain_is_entered_before_the_steps_are_over() -> None:
    reentry = Told()
    for tokens in (4, 2):
        reentry.left()
        reentry.caught_up(tokens, skipped=0, not_worth_it=0, left_out=0)
        reentry.returned(2)
        reentry.steps(5, tokens)
    reentry.left()
    reentry.left()
    assert reentry.records == [
        ReentryRecord(2, 4, 0, 0, 5, 2.0, None, 0.0),
        ReentryRecord(2, 2, 0, 0, 5, 1.0, None, 0.0),
    ]
    shown = reentry.as_dict()
    assert (shown["returns_measured"], shown["mean_accept_length"]) == (2, 1.5)


def test_a_return_without_a_verify_step_is_told_and_does_not_enter_the_mean() -> None:
    reentry = Told()
    reentry.returned(1)
    reentry.left()
    assert reentry.records == [ReentryRecord(1, 0, 0, 0, 0, None, None, 0.0)]
    shown = reentry.as_dict()
    assert (shown["returns_measured"], shown["mean_accept_length"]) == (0, None)


def test_a_return_with_nobody_running_is_none() -> None:
    reentry = Told()
    reentry.left()
    reentry.returned(0)
    reentry.steps(FIRST_STEPS, tokens=4)
    reentry.left()
    assert not reentry.records
    assert reentry.as_dict()["long_run_accept_length"] == 2.0
