from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specswitch.costs import (
    StepPoint,
    StepTime,
    SwitchCost,
    advantage,
    break_even_accept_length,
    break_even_batch_size,
    seconds_lost,
)

PLAIN = StepTime([StepPoint(1, 100, 0.005), StepPoint(65, 6500, 0.006), StepPoint(257, 25700, 0.011)], 1e-8)


def test_measured_points_are_met() -> None:
    assert PLAIN.seconds(1, 100) == pytest.approx(0.005)
    assert PLAIN.seconds(65, 6500) == pytest.approx(0.006)
    assert PLAIN.seconds(257, 25700) == pytest.approx(0.011)


def test_between_points_it_is_linear_and_beyond_them_it_goes_on() -> None:
    assert PLAIN.seconds(33, 3300) == pytest.approx(0.0055)
    slope = (0.011 - 257e-6 - (0.006 - 65e-6)) / 192
    assert PLAIN.seconds(357, 0) == pytest.approx(0.011 - 257e-6 + 100 * slope)
    assert PLAIN.seconds(0, 0) == PLAIN.seconds(1, 0)


def test_context_counts_per_token() -> None:
    assert PLAIN.seconds(1, 1_000_100) == pytest.approx(0.015)


def test_a_dent_in_the_measurement_is_filled() -> None:
    curve = StepTime([StepPoint(1, 0, 0.005), StepPoint(2, 0, 0.0049), StepPoint(4, 0, 0.006)], 0.0)
    assert curve.seconds(2, 0) == 0.005


@pytest.mark.parametrize(
    ("points", "slope"),
    [
        ([], 0.0),
        ([StepPoint(0, 0, 0.005)], 0.0),
        ([StepPoint(1, 0, 0.005), StepPoint(1, 0, 0.006)], 0.0),
        ([StepPoint(1, 1000, 0.005)], 5e-6),
        ([StepPoint(1, 1000, 0.005)], -1e-9),
    ],
)
def test_points_that_make_no_curve(points: list[StepPoint], slope: float) -> None:
    with pytest.raises(ValueError, match="step"):
        StepTime(points, slope)


points = st.lists(
    st.builds(StepPoint, st.integers(1, 512), st.floats(0, 1e6), st.floats(1e-3, 1.0)),
    min_size=1,
    max_size=8,
    unique_by=lambda point: point.batch_size,
)


@given(points=points, sizes=st.tuples(st.integers(1, 1000), st.integers(1, 1000)), context=st.floats(0, 1e6))
def test_a_larger_batch_never_takes_less(points: list[StepPoint], sizes: tuple[int, int], context: float) -> None:
    curve = StepTime(points, 1e-10)
    small, large = sorted(sizes)
    assert 0.0 < curve.seconds(small, context) <= curve.seconds(large, context) + 1e-12


def test_the_break_even_of_the_h200_chain() -> None:
    """The step times behind the accept lengths that the measurements give: 1.6 at 1, 2.35 at 128, 2.8 at 256."""
    plain = StepTime([StepPoint(1, 0, 0.0048), StepPoint(128, 0, 0.0076), StepPoint(256, 0, 0.0114)], 0.0)
    speculative = StepTime([StepPoint(1, 0, 0.0077), StepPoint(128, 0, 0.0177), StepPoint(256, 0, 0.0322)], 0.0)
    assert break_even_accept_length(0.0076, 0.0177) == pytest.approx(2.33, abs=0.01)
    assert break_even_batch_size(plain, speculative, 1.5, 256, 256) == 0
    assert 128 <= break_even_batch_size(plain, speculative, 2.5, 256, 256) < 200
    assert break_even_batch_size(plain, speculative, 3.5, 256, 256) == 256


@given(st.floats(1, 8), st.floats(1e-3, 1), st.floats(1e-3, 1))
def test_the_advantage_is_one_at_the_break_even(accept: float, plain: float, speculative: float) -> None:
    assert advantage(break_even_accept_length(plain, speculative), plain, speculative) == pytest.approx(1.0)
    lost_in_plain = seconds_lost(plain, advantage(accept, plain, speculative))
    assert lost_in_plain == pytest.approx(plain - speculative / accept)


def test_switch_cost() -> None:
    cost = SwitchCost(drain=0.003, restart=0.02, catch_up_per_token=22e-6)
    assert cost.to_speculative(1000) == pytest.approx(0.042)
    assert cost.there_and_back(1000) == pytest.approx(0.045)
