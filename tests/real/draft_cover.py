"""Does the draft's KV cache really hold what specswitch believes it holds?

Tokens that are decoded while PLAIN leave the draft's KV at their slots unwritten: whatever a former request left
there.  :class:`DraftCover` writes a mark into those slots instead, so that a slot that was never written again can be
told from one that was.
"""

from __future__ import annotations

from typing import Any

from specswitch.engine import v2_compat
from specswitch.engine.draft_gap import gap_of

MARK = 12345.0


class DraftCover:
    """Marks the draft's KV of plain steps, and looks for marks where the draft is believed to have seen the token."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        runner = _draft_runner(scheduler)
        self._keys: list[Any] = [] if runner is None else list(runner.token_to_kv_pool.k_buffer)

    def check(self) -> None:
        """Call after every turn; ``AssertionError`` when a token before a request's gap has unwritten draft KV."""
        if not self._keys:
            return
        batch, last = self._scheduler.running_batch, self._scheduler.last_batch
        if last is not None and last.forward_mode.is_decode() and last.spec_algorithm.is_none():
            self._mark(last)
        for req in batch.reqs:
            if not req.finished():
                self._check(req)

    def _mark(self, batch: Any) -> None:
        for keys in self._keys:
            keys[batch.out_cache_loc] = MARK

    def _check(self, req: Any) -> None:
        known = len(req.origin_input_ids) + len(req.output_ids) - 1
        gap = gap_of(req)
        seen = known if gap is None else min(gap, known)
        slots = self._scheduler.req_to_token_pool.req_to_token[v2_compat.row_index(req), :seen].long()
        for keys in self._keys:
            unwritten = (keys[slots] == MARK).flatten(1).all(1).nonzero().flatten().tolist()
            assert not unwritten, f"{req.rid}: the draft has not seen tokens {unwritten} of {seen} before {gap=}"


def _draft_runner(scheduler: Any) -> Any:
    """The draft model's runner, or None for a worker without a draft model."""
    worker = scheduler.draft_worker
    for name in ("draft_model_runner", "draft_runner"):
        for owner in (worker, getattr(worker, "draft_worker", None)):
            if hasattr(owner, name):
                return getattr(owner, name)
    return None
