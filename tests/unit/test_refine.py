from __future__ import annotations

from random import Random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specswitch.costs import StepPoint, StepTime
from specswitch.refine import AcceptEstimate, RefinedStepTime, RunningMedian

CURVE = StepTime([StepPoint(1, 0, 0.005), StepPoint(256, 0, 0.011)], 1e-8)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=80), st.integers(1, 31))
def test_running_median_is_the_median_of_the_latest(values: list[float], window: int) -> None:
    running = RunningMedian(window)
    for value in values:
        running.add(value)
    assert running.value == pytest.approx(median(values[-window:]))
    assert len(running) == min(len(values), window)


def fed(refined: RefinedStepTime, factor: float, times: int, size: int = 64, noise: float = 0.0) -> RefinedStepTime:
    random = Random(1)
    for _ in range(times):
        true = CURVE.seconds(size, 1000) * factor
        refined.add(size, 1000, true * random.lognormvariate(0, noise))
    return refined


def test_without_readings_the_calibration_holds() -> None:
    assert RefinedStepTime(CURVE).seconds(64, 1000) == CURVE.seconds(64, 1000)


def test_a_wrong_calibration_is_corrected() -> None:
    refined = fed(RefinedStepTime(CURVE), 1.5, 100, noise=0.05)
    assert refined.seconds(64, 1000) == pytest.approx(1.5 * CURVE.seconds(64, 1000), rel=0.12)


def test_it_is_never_frozen() -> None:
    refined = fed(fed(RefinedStepTime(CURVE), 1.5, 100_000), 0.8, 31)
    assert refined.correction(64) == pytest.approx(0.8, rel=0.06)


def test_neighbours_learn_and_far_batch_sizes_do_not() -> None:
    refined = fed(RefinedStepTime(CURVE), 1.5, 100)
    assert 1.2 < refined.correction(90) < 1.5
    assert refined.correction(1) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("spoilt", [0.5, 20.0])
def test_spoilt_readings_hardly_move_it(spoilt: float) -> None:
    """One reading in five is off by far, as in a burst of prefills; the others scatter by 2%."""
    random = Random(2)
    refined = RefinedStepTime(CURVE)
    for turn in range(200):
        factor = spoilt if turn % 5 == 0 else random.lognormvariate(0, 0.02)
        refined.add(64, 1000, CURVE.seconds(64, 1000) * factor)
    assert refined.correction(64) == pytest.approx(1.0, abs=0.02)


@given(st.lists(st.tuples(st.integers(-1, 600), st.floats(), st.floats(0, 1e6)), max_size=60), st.integers(1, 600))
def test_no_reading_takes_it_beyond_its_bound(readings: list[tuple[int, float, float]], size: int) -> None:
    refined = RefinedStepTime(CURVE, bound=4.0)
    for batch_size, seconds, context in readings:
        refined.add(batch_size, context, seconds)
    assert refined.correction(size) * 1.000001 >= 0.25
    assert refined.correction(size) <= 4.000001


def steps_until(estimate: AcceptEstimate, tokens_per_request: float, requests: int, close: float) -> int:
    for step in range(1, 1000):
        estimate.add(round(tokens_per_request * requests), requests)
        if abs(estimate.value - tokens_per_request) <= close:
            return step
    raise AssertionError("the change was not noticed")


@pytest.mark.parametrize(("requests", "steps"), [(2, 12), (4, 8), (8, 5), (16, 4), (32, 4), (256, 4)])
def test_a_new_accept_length_is_noticed_within_the_stated_steps(requests: int, steps: int) -> None:
    estimate = AcceptEstimate(3.5, 4.0)
    for _ in range(200):
        estimate.add(round(3.5 * requests), requests)
    assert steps_until(estimate, 1.5, requests, close=0.1 * (3.5 - 1.5)) <= steps


def drawn(random: Random, accept: float, requests: int) -> int:
    """Tokens of a verify step with three draft tokens, each accepted by chance."""
    return requests + sum(random.random() < (accept - 1.0) / 3.0 for _ in range(3 * requests))


@pytest.mark.parametrize(("requests", "error"), [(1, 0.06), (8, 0.04), (64, 0.02)])
def test_chance_hardly_moves_a_steady_text(requests: int, error: float) -> None:
    """Half as far, on average, as it moves the mean of the latest 128 requests."""
    random, estimate, far = Random(3), AcceptEstimate(2.5, 4.0), []
    for step in range(3000):
        estimate.add(drawn(random, 2.5, requests), requests)
        if step > 1000:
            far.append((estimate.value - 2.5) ** 2)
    assert (sum(far) / len(far)) ** 0.5 < error


@pytest.mark.parametrize(("requests", "steps"), [(1, 40), (2, 40), (8, 15), (64, 6)])
def test_chance_does_not_hide_a_change(requests: int, steps: int) -> None:
    for seed in range(10):
        random, estimate = Random(seed), AcceptEstimate(2.5, 4.0)
        for _ in range(1000):
            estimate.add(drawn(random, 3.3, requests), requests)
        for _ in range(steps):
            estimate.add(drawn(random, 1.3, requests), requests)
        assert estimate.value < 1.5


@pytest.mark.parametrize(("steps_alike", "noticed"), [((2, 3), 12), ((1, 4), 260)])
def test_what_all_requests_of_a_step_have_in_common_is_chance_too(steps_alike: tuple[int, int], noticed: int) -> None:
    """As where acceptance is simulated: a step's requests all accept the same."""
    random, estimate, far = Random(3), AcceptEstimate(2.5, 4.0), []
    for step in range(3000):
        estimate.add(64 * random.choice(steps_alike), 64)
        if step > 500:
            far.append(abs(estimate.value - 2.5))
    assert sum(far) / len(far) < 0.1
    assert steps_until(estimate, 1.2, 64, close=0.2) <= noticed


def test_a_text_that_has_become_easier_unseen_is_known_within_a_probe() -> None:
    """Whatever steps had in common before."""
    random, estimate = Random(5), AcceptEstimate(2.5, 4.0)
    for step in range(600):
        estimate.add(170 * (1 + step % 2), 170)
    estimate.doubt(0.7)
    for _ in range(32):
        estimate.add(28 * random.choice((2, 3)), 28)
    assert estimate.value == pytest.approx(2.5, abs=0.25)


def test_a_prior_gives_way_to_what_is_served() -> None:
    assert steps_until(AcceptEstimate(2.5), 1.5, 64, close=0.1) <= 24


def test_doubt_lets_the_next_steps_count_for_more() -> None:
    trusted, doubted = AcceptEstimate(2.5), AcceptEstimate(2.5)
    for estimate in (trusted, doubted):
        for _ in range(100):
            estimate.add(8, 4)
    doubted.doubt(0.0)
    doubted.add(12, 4)
    trusted.add(12, 4)
    assert doubted.value > 2.75
    assert trusted.value < 2.1


def test_a_single_odd_step_moves_a_settled_estimate_little() -> None:
    estimate = AcceptEstimate(2.0)
    for _ in range(100):
        estimate.add(64, 32)
    estimate.add(32 * 4, 32)
    assert estimate.value == pytest.approx(2.25)


def test_no_request_is_no_evidence() -> None:
    estimate = AcceptEstimate(2.0)
    estimate.add(0, 0)
    assert estimate.value == 2.0
