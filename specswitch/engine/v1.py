"""Non-overlap ``EAGLEWorker`` family of SGLang 0.5.11-0.5.12: EAGLE, EAGLE3, STANDALONE, NGRAM.

All that this worker couples to the scheduler ends here: its event loop has no result in flight, its
``ScheduleBatch.prepare_for_decode`` returns early (the draft tokens' ``out_cache_loc`` is allocated inside the
worker and what verification rejects is freed there, so nothing stays reserved between steps), ``output_ids`` is
the flat list of accepted tokens rather than one token per request, and its ``spec_info`` is filtered by
verification itself: ``update_running_batch`` passes ``v1_spec_info_filtered=True`` and trusts that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.eagle_info import EagleDraftInput

from specswitch.config import SwitchConfig
from specswitch.engine.base import PlainEntry, TurnListener
from specswitch.engine.event_loops import EventLoops
from specswitch.engine.hooks import swapped
from specswitch.engine.line_0_5_12 import Line0512Engine, last_tokens, tokens_counted_with_overlap
from specswitch.engine.plain_graphs import PlainForward, plain_forward
from specswitch.engine.supported_0_5_12 import unsupported

__all__ = ["V1Engine", "create", "unsupported"]


class V1Engine(Line0512Engine):
    """Engine for ``EAGLEWorker``, ``StandaloneWorker`` and ``NGRAMWorker``.

    While PLAIN the scheduler runs its overlap loop, unless the operator turned that off: plain decode is as fast as
    on a server whose loop was never held back by the worker.  Prefills still go through the worker, each in a turn
    of its own without overlap.
    """

    path = "v1"

    def __init__(
        self,
        scheduler: Any,
        release: str,
        plain_forward: PlainForward,
        config: SwitchConfig,
    ) -> None:
        super().__init__(scheduler, release, plain_forward, config)
        self._loops = EventLoops(scheduler) if config.plain_overlap == "on" else None

    def attach(self, listener: TurnListener) -> None:
        super().attach(listener)
        if self._loops is not None:
            self._loops.attach(self._hooks)

    def enter_plain(self) -> PlainEntry:
        entry = super().enter_plain()
        self._awaits_other_loop = self._loops is not None
        return entry

    def _before_plain_turn(self) -> None:
        scheduler, loops = self._scheduler, self._loops
        if loops is None:
            super()._before_plain_turn()
        elif loops.overlapped:
            if self._return_asked and self._is_ready_for_normal_loop():
                batch = scheduler.running_batch
                if not batch.is_empty():
                    batch.output_ids = last_tokens(batch)  # no futures are resolved in the normal loop
                    drop_overlap_penalties(batch.sampling_info)
                self._awaits_other_loop = True
                loops.leave_overlap()
        elif self._return_asked:
            super()._before_plain_turn()
        elif scheduler.last_batch is None or not scheduler.last_batch.forward_mode.is_extend():
            self._settled = frozenset(req.rid for req in scheduler.running_batch.reqs)
            self._awaits_other_loop = False
            loops.enter_overlap()

    def _turn_towards_return(self, batch: ScheduleBatch) -> Literal["plain", "hold", "return"]:
        turn = super()._turn_towards_return(batch)
        # the overlap loop is left as a turn begins; what the draft wrote in this turn may have made it ready only now
        return "hold" if turn == "return" and self._is_overlapped() else turn

    def _is_ready_for_normal_loop(self) -> bool:
        """Whether the return can be completed in this turn."""
        batch = self._scheduler.running_batch
        if self._result_in_flight() or self._scheduler.last_batch is not None:
            return False
        return batch.is_empty() or (self._can_return(batch) and not self._needs_aside(batch))

    def _before_prefill(self, batch: ScheduleBatch) -> None:
        super()._before_prefill(batch)
        if self._is_overlapped():
            batch.enable_overlap = False  # as an overlapped batch of this algorithm it would count as spec v2

    def _run_extend(self, original: Callable[..., Any], batch: ScheduleBatch, *args: Any) -> Any:
        if not self._is_overlapped():
            return original(batch, *args)
        scheduler = self._scheduler
        scheduler.schedule_stream.wait_stream(scheduler.forward_stream)
        with swapped(scheduler, enable_overlap=False), swapped(scheduler.tp_worker, enable_overlap=False):
            return original(batch, *args)

    def _joins_plain(self, batch: ScheduleBatch) -> None:
        batch.enable_overlap = self._is_overlapped()

    def _is_overlapped(self) -> bool:
        return self._loops is not None and self._loops.overlapped

    def _decode_in_flight(self) -> bool:
        return False  # a drain begins in the normal loop, which processes each result in its own turn

    def _result_in_flight(self) -> bool:
        return self._is_overlapped() and len(self._scheduler.result_queue) > 0

    def _counted_tokens(self, req: Any, settled: bool) -> list[int]:
        return tokens_counted_with_overlap(req, settled) if self._is_overlapped() else list(req.output_ids)

    @contextmanager
    def _after_launches(self) -> Iterator[None]:
        scheduler = self._scheduler
        if self._is_overlapped():
            scheduler.schedule_stream.wait_stream(scheduler.forward_stream)
        yield

    def _forward_aside(self, batch: ScheduleBatch) -> None:
        self._scheduler.draft_worker.forward_batch_generation(batch)

    def _cold_draft_input(self, batch: ScheduleBatch) -> EagleDraftInput:
        worker = self._scheduler.draft_worker
        return cold_draft_input(batch, worker, worker.topk, torch.int32)

    def _after_catch_up(self, batch: ScheduleBatch) -> None:
        # no verification ran, so the draft input still has rows of requests that finished here
        if any(req.finished() for req in batch.reqs):
            self._drop_finished(batch)


def drop_overlap_penalties(sampling_info: Any) -> None:
    """Forget what ``SamplingBatchInfo.copy_for_forward`` summed up for the last step of the overlap loop.

    It stays on the batch and would be applied beside the penalizers, in the batch's shape of that step.
    """
    sampling_info.acc_additive_penalties = sampling_info.acc_scaling_penalties = None


def cold_draft_input(batch: ScheduleBatch, worker: Any, topk: int, token_dtype: torch.dtype) -> EagleDraftInput:
    """A draft input made of the last token of each request and zero hidden states.

    Args:
        batch: in plain form, its tokens all known on the CPU.
        worker: ``EAGLEWorker`` (v1) or ``EagleDraftWorker`` (v2).
        token_dtype: dtype of ``bonus_tokens``.
    """
    size, device = batch.batch_size(), batch.device
    hidden_size = EagleDraftInput.hidden_size_for(worker)
    probabilities = torch.zeros((size, topk), dtype=torch.float32, device=device)
    probabilities[:, 0] = 1.0
    hidden_states = None
    if hidden_size is not None:
        dtype = EagleDraftInput.dtype_for(worker)
        hidden_states = torch.zeros((size, hidden_size), dtype=dtype, device=device)
    return EagleDraftInput(
        topk_p=probabilities,
        topk_index=torch.arange(topk, device=device).repeat(size, 1),
        hidden_states=hidden_states,
        bonus_tokens=last_tokens(batch).to(token_dtype),
        new_seq_lens=batch.seq_lens,
        capture_hidden_mode=CaptureHiddenMode.NULL if hidden_states is None else CaptureHiddenMode.LAST,
    )


def create(scheduler: Any, release: str, config: SwitchConfig) -> V1Engine:
    """The engine for ``scheduler``; raises :class:`specswitch.errors.UnsupportedError`."""
    return V1Engine(scheduler, release, plain_forward(scheduler), config)
