"""Overlap ``EAGLEWorkerV2`` family of SGLang 0.5.11-0.5.12: EAGLE, EAGLE3 and STANDALONE, topk 1.

Here a step's result is processed one turn after its launch.  Between steps each request keeps slots reserved for
two steps' draft tokens (``EagleDraftInputV2Mixin.prepare_for_decode``), and what the next step needs from the
last is relayed on the device through ``managers/overlap_utils.py`` ``FutureMap``, which knows draft inputs only.
This engine lets the map of a plain server relay token ids beside it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.speculative.eagle_info import EagleDraftInput

from specswitch.config import SwitchConfig
from specswitch.engine.base import TurnListener
from specswitch.engine.line_0_5_12 import NONE, Line0512Engine, tokens_counted_with_overlap
from specswitch.engine.plain_graphs import plain_forward
from specswitch.engine.plain_relay import plain_relay
from specswitch.engine.supported_0_5_12 import unsupported
from specswitch.engine.v1 import cold_draft_input

_MOST_ASIDES = 3
"""Forwards beside the event loop in one turn: for a reused prefix, and towards a return without and with the target."""

__all__ = ["V2Engine0512", "create", "unsupported"]


class V2Engine0512(Line0512Engine):
    """Engine for ``EAGLEWorkerV2`` and ``StandaloneWorkerV2`` under the overlap scheduler."""

    path = "v2"

    def attach(self, listener: TurnListener) -> None:
        super().attach(listener)
        future_map = self._scheduler.future_map
        self._plain_relay = plain_relay(self._scheduler)
        """Holds token ids at the places that the scheduler's own map gives out."""
        self._aside_batches: deque[Any] = deque(maxlen=_MOST_ASIDES * 2)
        """Keeps tensors alive that the forward stream still reads, as ``Scheduler.record_batch_in_overlap`` does."""
        self._hooks.around(future_map, "resolve_future", self._around_resolve_future)
        self._hooks.around(future_map, "store_to_map", self._around_store_to_map)

    def _around_resolve_future(self, original: Callable[..., Any], worker_batch: Any) -> None:
        if worker_batch.spec_algorithm is NONE:
            self._plain_relay.resolve_future(worker_batch)
        else:
            original(worker_batch)

    def _around_store_to_map(self, original: Callable[..., Any], future_indices: Any, result: Any) -> None:
        if result.accept_lens is None:  # a plain step or a prefill: one token per request
            self._plain_relay.store_to_map(future_indices, result)
        if result.next_draft_input is not None:
            original(future_indices, result)

    def _result_queue(self) -> Any:
        return getattr(self._scheduler, "result_queue", ())  # set when the event loop starts

    def _decode_in_flight(self) -> bool:
        return any(not batch.forward_mode.is_extend() for batch, _ in self._result_queue())

    def _result_in_flight(self) -> bool:
        return len(self._result_queue()) > 0

    def _counted_tokens(self, req: Any, settled: bool) -> list[int]:
        return tokens_counted_with_overlap(req, settled)

    @contextmanager
    def _after_launches(self) -> Iterator[None]:
        scheduler = self._scheduler
        with scheduler.forward_stream_ctx:
            scheduler.forward_stream.wait_stream(scheduler.schedule_stream)
            yield

    def _forward_aside(self, batch: ScheduleBatch) -> None:
        worker_batch = batch.get_model_worker_batch()
        self._aside_batches.append(worker_batch)
        self._scheduler.draft_worker.forward_batch_generation(worker_batch)

    def _cold_draft_input(self, batch: ScheduleBatch) -> EagleDraftInput:
        worker = self._scheduler.draft_worker
        draft_input = cold_draft_input(batch, worker.draft_worker, worker.topk, torch.int64)
        future_map = self._scheduler.future_map
        draft_input.future_indices = future_map.alloc_future_indices(batch.batch_size())
        future_map.store_to_map_for_new_batch(draft_input.future_indices, draft_input)
        return draft_input


def create(scheduler: Any, release: str, config: SwitchConfig) -> V2Engine0512:
    """The engine for ``scheduler``; raises :class:`specswitch.errors.UnsupportedError`."""
    return V2Engine0512(scheduler, release, plain_forward(scheduler), config)
