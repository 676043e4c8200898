from __future__ import annotations

import pytest

from specswitch.engine.pause import PauseBudget, PauseWatch, Waits


def settled(budget: PauseBudget, floor_ms: float, ms_per_token: float, waits: int = 60) -> PauseBudget:
    """After waits on a machine like this, for parts as the budget asked and now and then a small rest."""
    for turn in range(waits):
        tokens = budget.tokens_for(1) if turn % 6 else 40
        budget.waited(tokens, floor_ms + ms_per_token * tokens)
        budget.in_force = budget.measured
    return budget


@pytest.mark.parametrize(
    ("max_pause_ms", "tokens"),
    [(50.0, 896), (55.0, 1024), (23.0, 32), (1.0, 32), (1e6, 8192)],
)
def test_forward_and_step_fit_the_pause(max_pause_ms: float, tokens: int) -> None:
    assert PauseBudget(max_pause_ms, 8192).tokens_for(1) == tokens


@pytest.mark.parametrize(
    ("floor_ms", "ms_per_token"),
    [(15.0, 0.015), (20.0, 0.022), (27.0, 0.022), (30.0, 0.044), (20.0, 0.2)],
)
def test_forwards_fit_the_pause_on_a_machine_that_is_faster_or_slower(floor_ms: float, ms_per_token: float) -> None:
    budget = settled(PauseBudget(50.0, 16384), floor_ms, ms_per_token)
    tokens = budget.tokens_for(1)
    assert floor_ms + ms_per_token * tokens < 0.9 * 50.0
    larger = budget.sizes[budget.sizes.index(tokens) + 1]
    assert floor_ms + ms_per_token * larger > 0.8 * 50.0


def launched(tokens: int) -> float:
    """Milliseconds of a forward that is launched in 25 and then waits for the GPU: measured on an H200."""
    return max(25.0, 6.0 + 0.022 * tokens)


def test_small_forwards_that_wait_for_their_launch_do_not_make_large_ones_look_short() -> None:
    budget = PauseBudget(50.0, 8192)
    for turn in range(60):
        tokens = budget.tokens_for(16) if turn % 2 else 100 + turn
        budget.waited(tokens, launched(tokens))
        budget.in_force = budget.measured
        assert launched(budget.tokens_for(16)) < 50.0
    assert 1024 <= budget.tokens_for(16) <= 1792


def test_a_much_faster_machine_writes_up_to_twice_as_much() -> None:
    """And its pauses are shorter: what a token adds is never taken for less than assumed."""
    budget = settled(PauseBudget(50.0, 16384), 4.0, 0.004)
    assert budget.tokens_for(1) == budget.sizes[-1] == 1792


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


@pytest.mark.parametrize("milliseconds", [50.0, 60.0, 5000.0])
def test_one_long_wait_by_chance_costs_nothing(milliseconds: float) -> None:
    budget = settled(PauseBudget(50.0, 8192), 20.0, 0.022)
    budget.waited(1000, milliseconds)
    budget.in_force = budget.measured
    assert budget.tokens_for(1) == 896
    assert settled(budget, 20.0, 0.022).tokens_for(1) == 896


def test_what_was_measured_is_in_force_once_it_is_put_so() -> None:
    budget = PauseBudget(50.0, 8192)
    for _ in range(4):
        budget.waited(1022, 85.0)
    assert budget.tokens_for(1) == 896
    budget.in_force = budget.measured
    assert budget.tokens_for(1) < 800


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now

    def token(self, watch: PauseWatch, after_ms: float) -> object:
        waited = watch_token(self, watch, after_ms)
        return None if waited is None else (waited[1], round(waited[2], 6))


def watch_token(clock: Clock, watch: PauseWatch, after_ms: float) -> tuple[PauseBudget, int, float] | None:
    clock.now += after_ms / 1e3
    return watch.token()


def test_a_wait_is_that_for_the_forward_in_it() -> None:
    budget, clock = PauseBudget(50.0, 8192), Clock()
    watch = PauseWatch(False, clock)
    assert clock.token(watch, 5) is None
    watch.begin()
    watch.wrote(budget, 1000)
    assert clock.token(watch, 30) is None  # since when is not known
    watch.wrote(budget, 200)
    assert clock.token(watch, 20) == (200, 20)
    assert clock.token(watch, 10) is None
    watch.wrote(budget, 300)
    watch.disturbed()
    assert clock.token(watch, 90) is None
    assert watch.longest_ms == pytest.approx(20.0)
    watch.wrote(budget, 300)
    assert clock.token(watch, 25) == (300, 25)
    watch.wrote(budget, 300)
    assert clock.token(watch, 3_600_000) is None  # the server was paused
    assert watch.longest_ms == pytest.approx(25.0)
    watch.end()
    watch.wrote(budget, 300)
    assert clock.token(watch, 60) is None
    assert watch.longest_ms == pytest.approx(25.0)


def test_with_overlap_it_may_be_that_for_the_forward_before_and_the_first_two_say_nothing() -> None:
    """The GPU does part of the first forwards while the next is launched, as measured on an H200."""
    budget, clock = PauseBudget(50.0, 8192), Clock()
    watch = PauseWatch(True, clock)
    watch.begin()
    assert clock.token(watch, 5) is None
    for tokens, after_ms, told in [
        (1000, 17, None),
        (1000, 16, None),
        (300, 22, (1000, 22)),
        (300, 28, (300, 28)),
        (0, 27, (300, 27)),
        (0, 6, None),
        (1000, 16, None),
        (0, 17, None),
        (0, 6, None),
    ]:
        if tokens:
            watch.wrote(budget, tokens)
        assert clock.token(watch, after_ms) == told
    assert watch.longest_ms == pytest.approx(28.0)
    for _ in range(3):
        watch.wrote(budget, 300)
        watch.disturbed()
        assert clock.token(watch, 90) is None
    watch.wrote(budget, 300)
    assert clock.token(watch, 20) is None
    watch.wrote(budget, 300)
    assert clock.token(watch, 50) == (300, 50)  # longer than expected all the same


def test_forwards_get_smaller_where_each_return_has_but_one() -> None:
    """On a GPU that takes 100 ms and 0.2 ms a token."""
    budget, clock = PauseBudget(50.0, 8192), Clock()
    watch = PauseWatch(True, clock)
    for _ in range(20):
        watch.begin()
        clock.token(watch, 15)
        tokens = budget.tokens_for(16)
        watch.wrote(budget, tokens)
        clock.token(watch, 40)  # its launch
        waited = watch_token(clock, watch, 100 + 0.2 * tokens)
        if waited is not None:
            waited[0].waited(*waited[1:])
            budget.in_force = budget.measured
        watch.end()
    assert budget.tokens_for(16) < 500


@pytest.mark.parametrize("max_pause_ms", [23.0, 25.0, 30.0, 50.0, 200.0])
@pytest.mark.parametrize("times", [0.1, 1.0, 3.0, 30.0])
def test_a_forward_is_never_too_small_to_get_on(max_pause_ms: float, times: float) -> None:
    budget = PauseBudget(max_pause_ms, 8192)
    budget.in_force = Waits(20.0 * times, 0.022 * max(1.0, times), budget.sizes[-1])
    kept_up = [requests for requests in range(1, 300) if budget.keeps_up(requests)]
    assert kept_up
    for requests in kept_up:
        assert budget.sizes[-1] >= budget.tokens_for(requests) >= 3 * requests
        assert budget.tokens_for(requests) in budget.sizes


def test_forwards_have_few_sizes() -> None:
    budget = PauseBudget(50.0, 8192)
    assert len(budget.sizes) < 24
    assert [budget.filled_up(tokens) for tokens in (3, 32, 573, 896, 1000, 5000)] == [32, 32, 640, 896, 1024, 5000]
    assert PauseBudget(50.0, 20).sizes == (20,)
    for most in (64, 100, 4096):
        assert PauseBudget(1e6, most).sizes[-1] <= most


class Overlapped:
    """A server that launches a forward and a plain step, and then waits for the plain step before.

    A GPU that is slower than the launches falls behind them over the first forwards of a return, and a token takes
    longer as contexts grow.
    """

    plain_ms = 5.0

    def __init__(self, launch_ms: float, ms_per_token: float, growth: float) -> None:
        self.budget, self.clock = PauseBudget(50.0, 8192), Clock()
        self._launch_ms, self._ms_per_token, self._growth = launch_ms, ms_per_token, growth
        self._watch = PauseWatch(True, self.clock)
        self._gpu_free_at = self._step_before_done_at = 0.0

    def catch_up(self, missed: int, requests: int = 16) -> float:
        """The longest wait for a token in a return."""
        self.clock.now += 1.0
        self._gpu_free_at = self._step_before_done_at = self.clock.now
        self._watch.begin()
        self._watch.token()
        written = 0
        while missed - written > 3 * requests:
            tokens = min(self.budget.tokens_for(requests), missed - written)
            self._watch.wrote(self.budget, tokens)
            self._forward(tokens * (self._ms_per_token + self._growth * written))
            written += tokens - requests
        for _ in range(2):
            self._token(self._step_before_done_at)
        self._watch.end()
        return self._watch.longest_ms

    def _forward(self, milliseconds: float) -> None:
        begins = max(self._gpu_free_at, self.clock.now + 0.5e-3 * self._launch_ms)
        self.clock.now += 1e-3 * self._launch_ms
        step_done_at = max(begins + 1e-3 * milliseconds, self.clock.now) + 1e-3 * self.plain_ms
        self._token(self._step_before_done_at)
        self._gpu_free_at = self._step_before_done_at = step_done_at

    def _token(self, done_at: float) -> None:
        self.clock.now = max(self.clock.now + 1e-3, done_at)
        waited = self._watch.token()
        if waited is not None:
            waited[0].waited(*waited[1:])
            self.budget.in_force = self.budget.measured


@pytest.mark.parametrize("launch_ms", [16.0, 21.0, 25.0])
@pytest.mark.parametrize("growth", [0.0, 0.3e-6, 0.5e-6])  # the last as measured on an H200 (docs/benchmarks)
@pytest.mark.parametrize("ms_per_token", [0.015, 0.02, 0.025, 0.03, 0.035])
def test_nobody_waits_longer_than_allowed_while_the_gpu_falls_behind_and_contexts_grow(
    launch_ms: float, growth: float, ms_per_token: float
) -> None:
    server = Overlapped(launch_ms, ms_per_token, growth)
    assert max(server.catch_up(missed) for missed in (1600, 8000, 32000, 1600, 8000, 32000)) < 50.0


def test_forwards_grow_by_one_size_once_those_as_large_have_been_heard_of() -> None:
    budget = PauseBudget(50.0, 8192)
    asked = []
    for _ in range(10):
        asked.append(budget.tokens_for(1))
        budget.waited(asked[-1], 10.0)
        budget.in_force = budget.measured
    assert asked == [896] * 3 + [1024] * 3 + [1280] * 3 + [1536]


@pytest.mark.parametrize(("milliseconds", "most"), [(45.0, 640), (50.0, 512), (60.0, 448), (80.0, 256), (120.0, 160)])
def test_the_latest_large_forwards_make_the_next_ones_smaller_at_once(milliseconds: float, most: int) -> None:
    """The longer they took, the smaller."""
    budget = settled(PauseBudget(50.0, 8192), 20.0, 0.022)
    for tokens, waited in [(896, milliseconds), (40, 21.0), (896, milliseconds)]:
        budget.waited(tokens, waited)
    budget.in_force = budget.measured
    assert budget.tokens_for(1) == most
