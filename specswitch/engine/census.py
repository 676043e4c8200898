"""How many requests the next decode batch would hold, counted again only when that can have changed.

Between two turns a running batch changes in two ways.  Requests join or leave: ``ScheduleBatch.merge_batch`` extends
its list, ``filter_batch`` and what retracts put another list in its place.  And requests finish while a result is
processed, and stay listed until the next ``filter_batch``: each gives its row of slots back at once
(``mem_cache/common.py`` ``release_kv_cache``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from specswitch.engine import features
from specswitch.engine.hooks import InstanceHooks


class Census:
    """The unfinished requests of one scheduler: those that run, and those that the last prefill has finished."""

    def __init__(self, scheduler: Any, watched: frozenset[str]) -> None:
        """``watched``: the sampling features to look for."""
        self._scheduler = scheduler
        self._watched = watched
        self._counted: list[Any] | None = None
        """The running batch's list as it was counted last; None when it has to be counted again."""
        self._listed = 0
        """Its length then."""
        self._version = 0
        self.size = 0
        self.context_tokens = 0
        """Tokens of these requests, prompts included.  What a decode step puts out is to be added."""
        self.features: frozenset[str] = frozenset()
        """The watched features that these requests use."""

    def attach(self, hooks: InstanceHooks) -> None:
        hooks.around(self._scheduler.req_to_token_pool, "free", self._around_free)

    def take(self) -> int:
        """Bring all that is counted up to date, between two turns.

        Returns:
            A number that stays the same until they are counted again.
        """
        scheduler = self._scheduler
        running = scheduler.running_batch
        reqs: list[Any] = running.reqs
        nobody_joins = scheduler.last_batch is running
        if reqs is not self._counted or len(reqs) != self._listed or not nobody_joins:
            unfinished = self.unfinished()
            self.size = len(unfinished)
            self.context_tokens = sum(len(req.origin_input_ids) + len(req.output_ids) for req in unfinished)
            self.features = features.used_by(unfinished, self._watched)
            self._version += 1
            self._counted, self._listed = reqs if nobody_joins else None, len(reqs)
        return self._version

    def unfinished(self) -> list[Any]:
        """These requests themselves."""
        return [req for req in (*self._scheduler.running_batch.reqs, *self.just_prefilled()) if not req.finished()]

    def just_prefilled(self) -> Sequence[Any]:
        """Who joins the running batch this turn, finished or not."""
        scheduler = self._scheduler
        last = scheduler.last_batch
        if last is None or last is scheduler.running_batch or not last.forward_mode.is_extend():
            return ()
        return [req for req in last.reqs if req is not scheduler.chunked_req]

    def _around_free(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._counted = None
        return original(*args, **kwargs)
