from __future__ import annotations

import pytest

from specswitch.engine.pause import PauseBudget, PauseWatch


def settled(budget: PauseBudget, floor_ms: float, ms_per_token: float, waits: int = 60) -> PauseBudget:
    """After waits on a machine like this, for parts as the budget asked and now and then a small rest."""
    for turn in range(waits):
        tokens = budget.tokens_for(1) if turn % 6 else 40
        budget.waited(tokens, floor_ms + ms_per_token * tokens)
        budget.in_force = budget.measured
    return budget


@pytest.mark.parametrize(
    ("max_pause_ms", "tokens"),
    [(50.0, 1022), (23.0, 32), (1.0, 32), (1e6, 8192)],
)
def test_forward_and_step_fit_the_pause(max_pause_ms: float, tokens: int) -> None:
    assert PauseBudget(max_pause_ms, 8192).tokens_for(1) == tokens


@pytest.mark.parametrize(
    ("floor_ms", "ms_per_token"),
    [(4.0, 0.004), (15.0, 0.015), (20.0, 0.022), (27.0, 0.022), (30.0, 0.044), (20.0, 0.2)],
)
def test_forwards_fit_the_pause_on_a_machine_that_is_faster_or_slower(floor_ms: float, ms_per_token: float) -> None:
    tokens = settled(PauseBudget(50.0, 16384), floor_ms, ms_per_token).tokens_for(1)
    assert floor_ms + ms_per_token * tokens == pytest.approx(0.85 * 50.0, rel=0.1)


@pytest.mark.parametrize(("floor_ms", "ms_per_token"), [(65.0, 0.022), (55.0, 0.1), (200.0, 0.05)])
def test_where_no_forward_is_short_enough_they_take_half_as_long_again(floor_ms: float, ms_per_token: float) -> None:
    """Smaller ones would be many more, and hardly shorter."""
    tokens = settled(PauseBudget(50.0, 8192), floor_ms, ms_per_token).tokens_for(1)
    assert ms_per_token * tokens == pytest.approx(min(0.5 * floor_ms, ms_per_token * 1022), rel=0.25)


def test_a_forward_gets_on_with_the_batch_however_slow_the_machine() -> None:
    budget = settled(PauseBudget(50.0, 8192), 20.0, 1.0)
    assert budget.tokens_for(1) < 64
    assert budget.keeps_up(64)
    assert budget.tokens_for(64) == 192
    assert not PauseBudget(1.0, 8192).keeps_up(64)
    assert settled(PauseBudget(1.0, 8192), 200.0, 0.2).tokens_for(64) == 32


def test_one_long_wait_by_chance_costs_little_and_is_forgotten() -> None:
    budget = settled(PauseBudget(50.0, 8192), 20.0, 0.022)
    budget.waited(1000, 5000.0)
    budget.in_force = budget.measured
    assert budget.tokens_for(1) > 600
    assert settled(budget, 20.0, 0.022).tokens_for(1) > 980


def test_what_was_measured_is_in_force_once_it_is_put_so() -> None:
    budget = PauseBudget(50.0, 8192)
    for _ in range(4):
        budget.waited(1022, 85.0)
    assert budget.tokens_for(1) == 1022
    budget.in_force = budget.measured
    assert budget.tokens_for(1) < 800


def test_waits_of_no_time_at_all_leave_something_to_divide_by() -> None:
    budget = settled(PauseBudget(50.0, 8192), 0.0, 0.0)
    assert budget.tokens_for(1) == 8192
    for _ in range(16):
        budget.waited(1000, 0.0)
    budget.in_force = budget.measured
    assert budget.tokens_for(1) == 8192


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now

    def token(self, watch: PauseWatch, after_ms: float) -> object:
        self.now += after_ms / 1e3
        waited = watch.token()
        return None if waited is None else (waited[1], round(waited[2], 6))


def test_a_wait_is_that_for_the_forward_in_it_and_with_overlap_for_the_one_before() -> None:
    budget = PauseBudget(50.0, 8192)
    for overlap in (False, True):
        clock = Clock()
        watch = PauseWatch(overlap, clock)
        assert clock.token(watch, 5) is None
        watch.begin()
        watch.wrote(budget, 1000)
        assert clock.token(watch, 30) is None  # since when is not known
        watch.wrote(budget, 200)
        assert clock.token(watch, 20) == ((1000, 20) if overlap else (200, 20))
        assert clock.token(watch, 10) == ((200, 10) if overlap else None)
        assert clock.token(watch, 6) is None
        watch.wrote(budget, 300)
        watch.disturbed()
        assert clock.token(watch, 90) is None
        assert watch.longest_ms == pytest.approx(20.0)
        assert clock.token(watch, 25) == ((300, 25) if overlap else None)
        assert clock.token(watch, 3_600_000) is None  # the server was paused
        assert watch.longest_ms == pytest.approx(25.0)
        watch.end()
        watch.wrote(budget, 300)
        assert clock.token(watch, 60) is None
        assert watch.longest_ms == pytest.approx(25.0)
