from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from specswitch.engine.draft_gap import UnseenSlots, gap_of, open_gap
from specswitch.engine.prefix_slots import PrefixSlots


class Tree:
    """A prefix cache that remembers which token sequences it holds, and at which slots."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows
        self.slots: dict[tuple[int, ...], int] = {}
        """The slot of each sequence's last token."""

    def insert(self, req: Any) -> None:
        for length in range(1, len(req.tokens) + 1):
            key = tuple(req.tokens[:length])
            row = self.rows.req_to_token[req.row]
            self.slots.setdefault(key, int(row[length - 1]))
            row[length - 1] = self.slots[key]
        req.protected = len(req.tokens)

    def evictable_size(self) -> int:
        return len(self.slots) - 1 if self.slots else 0

    def protected_size(self) -> int:
        return 1 if self.slots else 0


class CountedReads(UnseenSlots):
    reads = 0

    def gaps_in(self, slots: Any, lengths: Any) -> Any:
        self.reads += 1
        return super().gaps_in(slots, lengths)


class Cache:
    """A tree, its rows and what keeps its flags."""

    def __init__(self) -> None:
        rows = SimpleNamespace(req_to_token=torch.arange(40, dtype=torch.int32).reshape(4, 10))
        self.tree = Tree(rows)
        self.unseen = CountedReads(40, "cpu")
        scheduler = SimpleNamespace(tree_cache=self.tree, req_to_token_pool=rows)
        self.kept = PrefixSlots(scheduler, self.unseen, lambda req: req.row, lambda req: req.protected)

    def insert(self, req: Any) -> None:
        self.kept.going_in(req, len(req.tokens))
        self.tree.insert(req)
        self.kept.gone_in(req, len(req.tokens))


def request(row: int, tokens: list[int], finished: bool = False) -> Any:
    return SimpleNamespace(row=row, tokens=tokens, protected=0, finished=lambda: finished)


def decoded_plain(row: int, tokens: list[int], since: int) -> Any:
    req = request(row, tokens, finished=True)
    open_gap(req, since)
    return req


def test_a_prefill_whose_slots_the_cache_replaces_learns_what_the_draft_missed_there() -> None:
    cache = Cache()
    cache.insert(decoded_plain(0, [1, 2, 3, 4, 5], since=3))
    again = request(1, [1, 2, 3, 4, 5, 6])
    cache.insert(again)
    assert gap_of(again) == 3


def test_nothing_is_read_from_the_device_where_no_slot_is_replaced() -> None:
    cache = Cache()
    cache.insert(decoded_plain(0, [1, 2, 3, 4, 5], since=3))
    another = request(1, [7, 8, 9])
    cache.insert(another)
    assert cache.unseen.any
    assert cache.unseen.reads == 0
    assert gap_of(another) is None
    longer = request(2, [7, 8, 9, 10])
    longer.protected = 3  # it started from the cached prefix
    cache.insert(longer)
    assert cache.unseen.reads == 0


def test_a_server_that_was_never_plain_reads_nothing() -> None:
    cache = Cache()
    cache.insert(request(0, [1, 2, 3]))
    cache.insert(request(1, [1, 2, 3]))
    assert not cache.unseen.any
    assert cache.unseen.reads == 0
