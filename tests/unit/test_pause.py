from __future__ import annotations

import pytest

from specswitch.engine.pause import PauseBudget


@pytest.mark.parametrize(
    ("max_pause_ms", "tokens"),
    [(50.0, 1022), (23.0, 32), (1.0, 32), (1e6, 8192)],
)
def test_forward_and_step_fit_the_pause(max_pause_ms: float, tokens: int) -> None:
    assert PauseBudget(max_pause_ms, 8192).tokens == tokens


def test_a_slower_forward_counts_at_once_and_a_faster_one_by_and_by() -> None:
    budget = PauseBudget(50.0, 8192)
    before = budget.tokens
    budget.took(1000, 64.0)
    slower = budget.tokens
    assert slower == pytest.approx(before / 2, abs=1)
    budget.took(1000, 42.0)
    assert slower < budget.tokens < before
