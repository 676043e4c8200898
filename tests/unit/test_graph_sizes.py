"""Which batch sizes get CUDA graphs."""

from __future__ import annotations

import pytest

from specswitch.config import SwitchConfig
from specswitch.engine import graph_sizes


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 4]), (4, [1, 2, 4]), (5, [1, 2, 4, 8]), (99, [1, 2, 4, 8])],
)
def test_verify_sizes_end_with_the_first_that_holds_the_limit(limit: int, expected: list[int]) -> None:
    assert graph_sizes.up_to([8, 1, 4, 2, 4], limit) == expected


def test_plain_sizes_go_on_to_the_limit_in_sglangs_steps() -> None:
    assert graph_sizes.reaching([1, 256], 280) == [1, 256, 272, 280]
    assert graph_sizes.reaching([496], 600) == [496, 512, 544, 576, 600]
    assert graph_sizes.reaching([1, 8], 8) == [1, 8]


@pytest.mark.parametrize(("mode", "expected"), [("auto", 32), ("plain", 1), ("speculative", None), ("observe", None)])
def test_speculative_runs_up_to_the_high_watermark_where_it_is_left(mode: str, expected: int | None) -> None:
    assert graph_sizes.speculative_limit(SwitchConfig(mode=mode)) == expected


def test_a_policy_without_watermarks_may_speculate_at_any_size() -> None:
    assert graph_sizes.speculative_limit(SwitchConfig(policy="goodput", profile="somewhere.json")) is None
