"""Let a scheduler that was started without overlap run SGLang's overlap loop while PLAIN.

The v1 workers force ``event_loop_normal`` on the whole server, although plain decode does not need it.  The two loops
of ``managers/scheduler.py`` (0.5.11-0.5.12) differ in a few attributes and are interchangeable at the start of a turn
with nothing in flight: the running one is left by an exception raised from ``get_next_batch_to_run``, before anything
of the turn has been chosen, and the other one is entered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from sglang.srt.managers.overlap_utils import FutureMap

from specswitch.engine.hooks import InstanceHooks
from specswitch.engine.plain_relay import plain_relay


class _LeaveLoop(BaseException):
    """Unwinds the event loop that is running; no fault, so that nothing in between contains it."""


class EventLoops:
    """Chooses between ``event_loop_normal`` and ``event_loop_overlap`` of one scheduler."""

    def __init__(self, scheduler: Any) -> None:
        self.overlapped = False
        self._scheduler = scheduler
        self._future_map = plain_relay(scheduler)
        scheduler.batch_record_buf = [None] * 2
        scheduler.batch_record_ct = 0

    def attach(self, hooks: InstanceHooks) -> None:
        hooks.around(self._scheduler, "event_loop_normal", self._run)

    def enter_overlap(self) -> None:
        """Go on in the overlap loop; only in plain form, the last prefill merged."""
        scheduler = self._scheduler
        # what ran last was processed in its own turn already: the overlap loop would wait for its result
        scheduler.last_batch = None
        self._set(True, self._future_map)
        raise _LeaveLoop

    def leave_overlap(self) -> None:
        """Go on in the normal loop; only with nothing in flight."""
        self._set(False, None)
        raise _LeaveLoop

    def _set(self, overlapped: bool, future_map: FutureMap | None) -> None:
        scheduler = self._scheduler
        self.overlapped = overlapped
        scheduler.enable_overlap = overlapped
        scheduler.tp_worker.enable_overlap = overlapped
        scheduler.running_batch.enable_overlap = overlapped
        scheduler.future_map = future_map
        scheduler.result_queue = deque()

    def _run(self, original: Callable[[], Any]) -> Any:
        while True:
            loop = self._scheduler.event_loop_overlap if self.overlapped else original
            try:
                return loop()
            except _LeaveLoop:
                continue
