"""Whether the KV pool has room for a return to SPECULATIVE.

Relies on ``Scheduler.token_to_kv_pool_allocator.available_size``, ``Scheduler.tree_cache.evictable_size`` and
``Scheduler.waiting_queue`` (0.5.11 to 0.5.23).
"""

from __future__ import annotations

from typing import Any


class ReturnRoom:
    """Room for what every request needs in speculative form, so that a return retracts nobody.

    Who waits may be let in before the first verify step and takes its prompt's slots.  But on a busy server the queue
    never empties, and must not put a return off for ever: after some turns it counts no longer.
    """

    _PATIENCE = 32
    """Turns for which the queue counts."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._turns = 0

    def asked(self) -> None:
        """A return has been asked for."""
        self._turns = self._PATIENCE

    def suffices(self, needed: int) -> bool:
        """Whether ``needed`` KV slots are free, besides what those who wait would take."""
        scheduler = self._scheduler
        free = scheduler.token_to_kv_pool_allocator.available_size() + scheduler.tree_cache.evictable_size()
        if free < needed:
            return False
        waiting = sum(len(req.origin_input_ids) + len(req.output_ids) for req in scheduler.waiting_queue)
        if free >= needed + waiting:
            return True
        self._turns -= 1
        return self._turns < 0
