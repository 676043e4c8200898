"""Non-overlap ``EAGLEWorker`` family of SGLang 0.5.11-0.5.12: EAGLE, EAGLE3, STANDALONE, NGRAM.

All that this worker couples to the scheduler ends here: its event loop has no result in flight, its
``ScheduleBatch.prepare_for_decode`` returns early (the draft tokens' ``out_cache_loc`` is allocated inside the
worker and what verification rejects is freed there, so nothing stays reserved between steps), ``output_ids`` is
the flat list of accepted tokens rather than one token per request, and its ``spec_info`` is filtered by
verification itself: ``update_running_batch`` passes ``v1_spec_info_filtered=True`` and trusts that.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.eagle_info import EagleDraftInput

from specswitch.config import SwitchConfig
from specswitch.engine.line_0_5_12 import Line0512Engine
from specswitch.engine.plain_graphs import plain_forward
from specswitch.engine.supported_0_5_12 import unsupported

__all__ = ["V1Engine", "create", "unsupported"]


class V1Engine(Line0512Engine):
    """Engine for ``EAGLEWorker``, ``StandaloneWorker`` and ``NGRAMWorker``."""

    path = "v1"

    def _decode_in_flight(self) -> bool:
        return False

    def _result_in_flight(self) -> bool:
        return False

    def _counted_tokens(self, req: Any, settled: bool) -> list[int]:
        return list(req.output_ids)

    def _forward_aside(self, batch: ScheduleBatch) -> None:
        self._scheduler.draft_worker.forward_batch_generation(batch)

    def _cold_draft_input(self, batch: ScheduleBatch) -> EagleDraftInput:
        worker = self._scheduler.draft_worker
        return cold_draft_input(batch, worker, worker.topk, torch.int32)

    def _after_catch_up(self, batch: ScheduleBatch) -> None:
        # no verification ran, so the draft input still has rows of requests that finished here
        if any(req.finished() for req in batch.reqs):
            self._filter_finished(batch)


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
        bonus_tokens=torch.tensor([req.output_ids[-1] for req in batch.reqs], dtype=token_dtype).to(device),
        new_seq_lens=batch.seq_lens,
        capture_hidden_mode=CaptureHiddenMode.NULL if hidden_states is None else CaptureHiddenMode.LAST,
    )


def create(scheduler: Any, release: str, config: SwitchConfig) -> V1Engine:
    """The engine for ``scheduler``; raises :class:`specswitch.errors.UnsupportedError`."""
    return V1Engine(scheduler, release, plain_forward(scheduler), config)
