"""The ring of hidden states against a dictionary that does the same."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from specswitch.engine.kept_hidden import KeptHidden  # noqa: E402

SLOTS, WIDTH = 12, 3
ROW = WIDTH * 4


def hidden(*values: int) -> torch.Tensor:
    """One row for each value."""
    return torch.tensor(values, dtype=torch.float32).unsqueeze(1).repeat(1, WIDTH)


def slots(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def ring(rows: int) -> KeptHidden:
    return KeptHidden(rows * ROW, SLOTS, "cpu")


def held(kept: KeptHidden) -> dict[int, int]:
    """What is kept, by slot."""
    everything = torch.arange(SLOTS)
    found = [number for number, count in enumerate(kept.leading(everything, [1] * SLOTS)) if count]
    return {number: int(kept.of(slots(number))[0, 0]) for number in found}


steps = st.lists(
    st.tuples(st.booleans(), st.lists(st.integers(0, SLOTS - 1), min_size=1, max_size=SLOTS, unique=True)),
    max_size=30,
)


@given(rows=st.integers(1, 9), steps=steps)
def test_holds_the_newest_and_nothing_else(rows: int, steps: list[tuple[bool, list[int]]]) -> None:
    kept, order, value = ring(rows), [], 0
    latest: dict[int, int] = {}
    for keeps, numbers in steps:
        if keeps:
            values = list(range(value, value + len(numbers)))
            value += len(numbers)
            kept.keep(slots(*numbers), hidden(*values))
            for number in numbers:
                latest.pop(number, None)
            stored = list(zip(numbers, values, strict=True))[:rows]
            order += stored
            latest |= dict(stored)
        else:
            kept.forget(slots(*numbers))
            for number in numbers:
                latest.pop(number, None)
        in_the_ring = {written for _, written in order[-rows:]}
        latest = {number: written for number, written in latest.items() if written in in_the_ring}
        assert held(kept) == latest
    assert kept.overwritten == max(0, len(order) - kept.rows)


def test_leading_and_lacking_count_from_the_start_of_each_range() -> None:
    kept = ring(SLOTS)
    kept.keep(slots(1, 2, 4), hidden(10, 20, 40))
    together = slots(1, 2, 3, 4, 5, 6, 4, 1, 2)
    assert kept.leading(together, [4, 2, 3]) == [2, 0, 3]
    assert kept.lacking(together, [4, 2, 3]) == [0, 2, 0]
    assert kept.of(slots(4, 1))[:, 0].tolist() == [40, 10]


def test_takes_its_memory_at_once_and_within_the_budget() -> None:
    kept = KeptHidden(2**20 + 1, SLOTS, "cpu")
    assert kept.as_dict() == {"rows": 0, "rows_held": 0, "rows_overwritten": 0, "mib": 1.0}
    memory = kept._memory.data_ptr()
    kept.keep(slots(1), hidden(1))
    assert kept.rows == 2**20 // ROW
    assert kept.of(slots(1))[:, 0].tolist() == [1]
    assert kept._states is not None
    assert kept._states.data_ptr() == memory
    assert kept._states.nbytes <= 2**20


def test_keeps_the_first_of_more_tokens_than_there_are_rows() -> None:
    kept = KeptHidden(5 * ROW + 1, SLOTS, "cpu")
    kept.keep(slots(1, 2, 3, 4, 5, 6, 7), hidden(1, 2, 3, 4, 5, 6, 7))
    assert kept.rows == 5
    assert held(kept) == {1: 1, 2: 2, 3: 3, 4: 4, 5: 5}


def test_a_budget_below_one_hidden_state_is_an_error() -> None:
    with pytest.raises(ValueError, match="takes 12 bytes"):
        KeptHidden(ROW - 1, SLOTS, "cpu").keep(slots(1), hidden(1))


def test_is_made_in_inference_mode_and_written_outside() -> None:
    kept = ring(2)
    with torch.inference_mode():
        kept.keep(slots(1), hidden(1))
    kept.keep(slots(2), hidden(2))
    assert held(kept) == {1: 1, 2: 2}


def test_slots_may_be_int32() -> None:
    kept = ring(2)
    kept.keep(torch.tensor([3], dtype=torch.int32), hidden(7))
    assert held(kept) == {3: 7}
    kept.forget(torch.tensor([3], dtype=torch.int32))
    assert held(kept) == {}
