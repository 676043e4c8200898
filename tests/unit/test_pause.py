from __future__ import annotations

import pytest

from specswitch.engine.pause import PauseBudget, PauseWatch


def settled(budget: PauseBudget, slower: float, waits: int = 40) -> PauseBudget:
    """After waits that were as many times as long as assumed at first."""
    for _ in range(waits):
        tokens = budget.tokens_for(1)
        budget.waited(tokens, slower * (20.0 + 0.022 * tokens))
        budget.scale = budget.measured_scale
    return budget


@pytest.mark.parametrize(
    ("max_pause_ms", "tokens"),
    [(50.0, 1022), (23.0, 32), (1.0, 32), (1e6, 8192)],
)
def test_forward_and_step_fit_the_pause(max_pause_ms: float, tokens: int) -> None:
    assert PauseBudget(max_pause_ms, 8192).tokens_for(1) == tokens


@pytest.mark.parametrize("slower", [0.2, 0.7, 1.0, 1.5, 2.0])
def test_forwards_fit_the_pause_on_a_machine_that_is_faster_or_slower(slower: float) -> None:
    tokens = settled(PauseBudget(50.0, 16384), slower).tokens_for(1)
    assert slower * (20.0 + 0.022 * tokens) == pytest.approx(0.85 * 50.0, rel=0.02)


def test_a_machine_too_slow_for_the_pause_writes_as_little_as_gets_on() -> None:
    budget = settled(PauseBudget(50.0, 8192), 10.0)
    assert budget.tokens_for(1) == 32
    assert budget.keeps_up(64)
    assert budget.tokens_for(64) == 192
    assert not PauseBudget(1.0, 8192).keeps_up(64)
    assert settled(PauseBudget(1.0, 8192), 10.0).tokens_for(64) == 32


def test_one_long_wait_by_chance_costs_little_and_is_forgotten() -> None:
    budget = settled(PauseBudget(50.0, 8192), 1.0)
    budget.waited(1000, 5000.0)
    budget.scale = budget.measured_scale
    assert budget.tokens_for(1) > 600
    assert settled(budget, 1.0).tokens_for(1) > 1000


def test_what_was_measured_is_in_force_once_it_is_put_so() -> None:
    budget = PauseBudget(50.0, 8192)
    budget.waited(1022, 85.0)
    assert budget.tokens_for(1) == 1022
    budget.scale = budget.measured_scale
    assert budget.tokens_for(1) < 700


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
        watch.end()
        watch.wrote(budget, 300)
        assert clock.token(watch, 60) is None
        assert watch.longest_ms == pytest.approx(25.0)
