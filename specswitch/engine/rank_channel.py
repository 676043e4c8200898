"""Carry decisions from rank 0 to all ranks with the requests that SGLang broadcasts every turn.

SGLang's ``SchedulerInputBlocker`` hook sits right before the broadcast (0.5.11-0.5.12 ``Scheduler.recv_requests``,
later ``scheduler_components/request_receiver.py`` ``recv_requests``): what is added to the list there on the rank
that receives requests reaches ``Scheduler.process_input_requests`` of every rank in the same turn, before its batch
is chosen.  No collective is added.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from specswitch.engine.hooks import InstanceHooks
from specswitch.ranks import Decision


class RankChannel:
    """Sends and receives on one scheduler."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._outbox: list[Decision] = []

    def attach(self, hooks: InstanceHooks, deliver: Callable[[Decision], None]) -> None:
        """``deliver`` is called with every decision, on every rank."""
        scheduler = self._scheduler
        receiver = getattr(scheduler, "request_receiver", None)
        if receiver is None:  # up to 0.5.12
            hooks.replace(scheduler, "input_blocker", _Rider(scheduler.input_blocker, self._outbox))
        else:  # a frozen dataclass, which the scheduler asks anew each turn
            rider = _Rider(receiver.input_blocker, self._outbox)
            hooks.replace(scheduler, "request_receiver", dataclasses.replace(receiver, input_blocker=rider))
        hooks.add_item(scheduler._request_dispatcher._mapping, Decision, deliver)

    def send(self, decision: Decision) -> None:
        """Let it travel with the next turn's requests; only on rank 0."""
        self._outbox.append(decision)


class _Rider:
    """Takes the input blocker's place, and adds what is to be sent to what it lets through."""

    def __init__(self, blocker: Any, outbox: list[Decision]) -> None:
        self._blocker = blocker
        self._outbox = outbox

    def handle(self, requests: list[Any] | None) -> list[Any] | None:
        """``requests`` is None on ranks that receive none."""
        if self._blocker is not None:
            requests = self._blocker.handle(requests)
        if requests is not None and self._outbox:
            requests = [*requests, *self._outbox]
            self._outbox.clear()
        return requests


def tensor_parallel(scheduler: Any) -> tuple[int, int]:
    """Rank and size of the scheduler's tensor-parallel group."""
    if hasattr(scheduler, "tp_rank"):  # up to 0.5.12
        return scheduler.tp_rank, scheduler.tp_size
    parallel = getattr(scheduler, "ps", None)
    if parallel is None:  # 0.5.21 and later
        from sglang.srt.runtime_context import get_parallel

        parallel = get_parallel()
    return parallel.tp_rank, parallel.tp_size
