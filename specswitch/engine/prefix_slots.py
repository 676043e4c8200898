"""Keep the flags of cached slots, and the gaps of requests, true as slots go into the prefix cache and come out of it.

Relies on ``mem_cache/radix_cache.py`` ``RadixCache.insert`` and its callers (0.5.11 to 0.5.23; the same in
``unified_radix_cache.py``): an insert keeps the slots that the tree has for a token already, frees the request's own,
and writes the tree's into the request's row, up to ``cache_protected_len``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specswitch.engine.draft_gap import UnseenSlots, gap_of, open_gap


class PrefixSlots:
    """What one scheduler's prefix cache holds, as far as the draft is concerned."""

    def __init__(
        self,
        scheduler: Any,
        unseen: UnseenSlots,
        row_index: Callable[[Any], int | None],
        protected_len: Callable[[Any], int],
    ) -> None:
        """
        Args:
            scheduler: SGLang's ``Scheduler``.
            unseen: the flags, by slot.
            row_index: of a request in ``req_to_token``; None if it has none.
            protected_len: how many leading slots of a request are the tree's.
        """
        self._tree_cache = scheduler.tree_cache
        self._rows = scheduler.req_to_token_pool
        self._unseen = unseen
        self._row_index = row_index
        self._protected_len = protected_len
        self._trees_before = 0
        """What :meth:`_trees` was before the insert under way."""

    def going_in(self, req: Any, length: int) -> None:
        """The first ``length`` slots of ``req`` are about to go into the cache: written by the draft up to its gap."""
        self._trees_before = self._trees(req)
        index, gap = self._row_index(req), gap_of(req)
        if index is not None and (self._unseen.any or (gap is not None and gap < length)):
            self._unseen.note(self._rows.req_to_token[index, :length], gap)

    def gone_in(self, req: Any, length: int) -> None:
        """They have, and ``req`` goes on with the tree's: older ones, perhaps, that the draft has not written."""
        if not self._unseen.any or req.finished() or self._trees(req) == self._trees_before:
            return
        row = self._rows.req_to_token[self._row_index(req), :length]
        (gap,) = self._unseen.gaps_in(row.long(), [length])
        if gap is not None:
            open_gap(req, gap)

    def _trees(self, req: Any) -> int:
        """Slots of ``req`` that are the tree's, less all that are the tree's.

        An insert of slots that the tree lacked adds as many to both.  So a change tells, without a look at the
        device, that slots were replaced.
        """
        tree = self._tree_cache
        return self._protected_len(req) - int(tree.evictable_size() + tree.protected_size())
