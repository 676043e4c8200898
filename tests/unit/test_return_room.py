from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from specswitch.engine.return_room import ReturnRoom


def scheduler(free: int, evictable: int = 0, waiting: tuple[int, ...] = ()) -> Any:
    return SimpleNamespace(
        token_to_kv_pool_allocator=SimpleNamespace(available_size=lambda: free),
        tree_cache=SimpleNamespace(evictable_size=lambda: evictable),
        waiting_queue=[SimpleNamespace(origin_input_ids=[0] * tokens, output_ids=[]) for tokens in waiting],
    )


@pytest.mark.parametrize(
    ("free", "evictable", "waiting", "expected"),
    [(64, 0, (), True), (63, 0, (), False), (60, 4, (), True), (64, 0, (1,), False), (80, 0, (10, 6), True)],
)
def test_the_reserve_and_those_who_wait(free: int, evictable: int, waiting: tuple[int, ...], expected: bool) -> None:
    room = ReturnRoom(scheduler(free, evictable, waiting))
    room.asked()
    assert room.suffices(64) is expected


def test_a_queue_that_never_empties_puts_a_return_off_for_some_turns_alone() -> None:
    room = ReturnRoom(scheduler(100, waiting=(500,)))
    room.asked()
    answers = [room.suffices(64) for _ in range(40)]
    assert answers == [False] * 32 + [True] * 8
    room.asked()
    assert not room.suffices(64)


def test_without_the_reserve_nobody_returns_however_long_it_takes() -> None:
    room = ReturnRoom(scheduler(63, waiting=(500,)))
    room.asked()
    assert not any(room.suffices(64) for _ in range(100))
