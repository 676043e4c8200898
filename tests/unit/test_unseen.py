"""How trust in what is not seen fades."""

from __future__ import annotations

import pytest

from specswitch.policy.unseen import Unseen


def test_half_is_left_after_the_memory() -> None:
    unseen = Unseen(1000)
    assert unseen.trust == 1.0
    unseen.passed(1000)
    assert unseen.trust == 0.5
    unseen.looked()
    assert unseen.trust == 1.0


def test_what_has_held_for_long_is_expected_to_hold_on() -> None:
    unseen = Unseen(1000)
    unseen.passed(9000)
    unseen.looked()
    unseen.passed(1000)
    assert unseen.trust == pytest.approx(10 / 11)


def test_a_stay_of_its_own_ends_what_looks_have_confirmed() -> None:
    unseen = Unseen(1000)
    unseen.passed(9000)
    unseen.settled()
    unseen.passed(1000)
    assert unseen.trust == 0.5


@pytest.mark.parametrize("every", [500, 8000])
def test_changes_are_expected_as_often_as_they_have_come(every: int) -> None:
    """By the exponential law the chance that nothing has changed after half the mean is exp(-0.5)."""
    unseen = Unseen(2000)
    for _ in range(50):
        unseen.passed(every)
        unseen.looked()
        unseen.changed()
        unseen.settled()
    unseen.passed(every // 2)
    assert unseen.trust == pytest.approx(2.718**-0.5, abs=0.03)
