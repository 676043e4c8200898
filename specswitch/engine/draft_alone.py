"""Let the speculative worker write draft KV without running the target again.

A worker's own extend runs the target over the tokens and hands its hidden states, and the token it sampled, to the
draft's prefill.  All of that is known here already: STANDALONE's draft takes no hidden states, those of tokens
decoded while PLAIN are kept (``kept_hidden``) if the operator gave a budget for them, and the token that followed a
range is part of the request.  So the worker's method runs as it is, and for its duration
``TpModelWorker.forward_batch_generation`` answers from what is known.

Relies on ``sglang/srt/speculative/eagle_worker.py`` ``EAGLEWorker.forward_target_extend`` and
``eagle_worker_v2.py`` ``EAGLEWorkerV2.forward_batch_generation``: of the target's result they read ``hidden_states``,
``mm_input_embeds``, ``next_token_ids`` and ``can_run_cuda_graph``; every forward of the target, verification too, goes
through ``forward_batch_generation`` of its ``TpModelWorker`` with the slots it writes in ``out_cache_loc``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from specswitch.config import SwitchConfig
from specswitch.engine import kv, v2_compat
from specswitch.engine.draft_gap import gap_of
from specswitch.engine.draft_kv import is_worth
from specswitch.engine.hooks import InstanceHooks, swapped
from specswitch.engine.kept_hidden import KeptHidden
from specswitch.engine.pause import PauseBudget
from specswitch.errors import ConfigError

FEW = 4
"""Tokens of a request that are left to the target's own forward: it covers the pending one anyway."""
_MARGIN = 8
"""Kept tokens that the target covers all the same: newer ones overwrite some of them before the next turn."""
_MIB = 2**20
_FLOOR_MS = 5.0
_MS_PER_TOKEN = 0.005
"""An EAGLE draft has one layer; not measured on a GPU yet, so a quarter of what the target takes (``pause``)."""

Range = tuple[Any, int, int]
"""``(request, start, end)``: tokens ``start..end`` of a request."""


class DraftAlone:
    """Answers for the target while the draft alone is to run, and keeps the hidden states that this takes."""

    def __init__(self, scheduler: Any, config: SwitchConfig, most_tokens: int) -> None:
        """``most_tokens``: what one forward may hold; raises as :func:`of` does."""
        allocator = scheduler.token_to_kv_pool_allocator
        self._req_to_token: torch.Tensor = scheduler.req_to_token_pool.req_to_token
        self._target = scheduler.tp_worker
        parameters = inspect.signature(self._target.forward_batch_generation).parameters
        self._takes_hidden_mode = "capture_hidden_mode" in parameters
        """Whether a forward is told by argument which hidden states to put out, and not by the batch."""
        self._answer: Any = None
        """What the target's next forward is said to have put out."""
        self._same_tokens = False
        """Whether forwards of the target write what its slots hold already."""
        self._gave_up = False
        """Whether something went wrong, so that nothing is kept any more."""
        self._report: Callable[[str, BaseException], None]
        self.kept: KeptHidden | None
        if scheduler.spec_algorithm.is_standalone():
            self.kept = None
            self.pause = PauseBudget(config.max_pause_ms, most_tokens)
        else:
            slots = allocator.size + scheduler.page_size
            self.kept = _ring(config.draft_kv_budget, slots, allocator.device)
            self.pause = PauseBudget(config.max_pause_ms, most_tokens, _FLOOR_MS, _MS_PER_TOKEN)

    def attach(self, hooks: InstanceHooks, report: Callable[[str, BaseException], None]) -> None:
        """Hook the target's worker; ``report`` is told what goes wrong with keeping hidden states."""
        self._report = report
        hooks.around(self._target, "forward_batch_generation", self._around_target)

    def what_is_missing(self, reqs: Sequence[Any], room: int) -> tuple[list[Range], bool]:
        """What the draft can write alone of the tokens that running requests miss.

        Under overlap, call it on the stream of the forwards: it reads back from the device.

        Returns:
            Ranges of at most ``room`` tokens in all, and whether there is more than that.
        """
        wanted = []
        for req in reqs:
            # the last token's KV may be in flight, and nothing has followed it
            start, end = gap_of(req), len(req.origin_input_ids) + len(req.output_ids) - 1
            if start is not None and not req.finished() and is_worth(req) and end - start > FEW:
                wanted.append((req, start, end))
        ranges = [reach for reach in self.leading(wanted) if reach[2] - reach[1] > FEW]
        return within(ranges, room), sum(end - start for _, start, end in ranges) > room

    def leading(self, ranges: Sequence[Range]) -> list[Range]:
        """The ranges, each as far as the draft can write it alone; reads back from the device."""
        if self._gave_up:
            return []
        if self.kept is None or not ranges:
            return list(ranges)
        counts = self.kept.leading(*self._slots_of(ranges))
        return [(req, start, start + count) for (req, start, _), count in zip(ranges, counts, strict=True)]

    def short_of_kept(self, ranges: Sequence[Range]) -> list[Range]:
        """The ranges for which the target has to run again, each to a little past the first token that is kept; reads
        back from the device."""
        if self.kept is None or self._gave_up or not ranges:
            return list(ranges)
        counts = self.kept.lacking(*self._slots_of(ranges))
        return [
            (req, start, min(end, start + count + _MARGIN) if count else end)
            for (req, start, end), count in zip(ranges, counts, strict=True)
        ]

    def _slots_of(self, ranges: Sequence[Range]) -> tuple[torch.Tensor, list[int]]:
        """The slots of all ranges, one after another, and how many each has."""
        reqs, starts, ends = zip(*ranges, strict=True)
        slots = kv.gather_slots(self._req_to_token, [v2_compat.row_index(req) for req in reqs], starts, ends)
        return slots, [end - start for _, start, end in ranges]

    @contextmanager
    def without_target(self, ranges: Sequence[Range], slots: torch.Tensor) -> Iterator[None]:
        """In here the worker's extend over ``ranges``, at ``slots`` int64 ``[tokens]``, runs the draft alone."""
        from sglang.srt.layers.logits_processor import LogitsProcessorOutput
        from sglang.srt.managers.utils import GenerationBatchResult

        followers = [kv.token_range(req, end, end + 1)[0] for req, _, end in ranges]
        hidden = None if self.kept is None else self.kept.of(slots)
        self._answer = GenerationBatchResult(
            logits_output=LogitsProcessorOutput(next_token_logits=None, hidden_states=hidden),
            next_token_ids=torch.tensor(followers, dtype=torch.int64).to(slots.device, non_blocking=True),
        )
        try:
            yield
        finally:
            self._answer = None

    @contextmanager
    def over_known_tokens(self) -> Iterator[None]:
        """In here the target runs again over tokens whose KV it has written: what is kept of them stays right."""
        self._same_tokens = True
        try:
            yield
        finally:
            self._same_tokens = False

    def _around_target(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._answer is not None:
            return self._answer
        batch = args[0] if args else None
        if self.kept is None or self._same_tokens:
            return original(*args, **kwargs)
        keeps = batch is not None and _is_plain_decode(batch) and not _wants_hidden_states(batch)
        with self._capturing(batch, kwargs) if keeps else nullcontext():
            result = original(*args, **kwargs)
        if self._gave_up:
            return result
        slots = (kwargs["forward_batch"] if batch is None else batch).out_cache_loc
        try:
            self._note(self.kept, slots, result.logits_output, keeps)
        except Exception as error:
            self._gave_up = True
            self._report("keeping hidden states", error)
        return result

    def _capturing(self, batch: Any, kwargs: dict[str, Any]) -> AbstractContextManager[None]:
        """In here the target's forward puts out one hidden state for each token: in a plain step for each request."""
        from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode

        if not self._takes_hidden_mode:
            return swapped(batch, capture_hidden_mode=CaptureHiddenMode.FULL)
        kwargs["capture_hidden_mode"] = CaptureHiddenMode.FULL
        return nullcontext()

    @staticmethod
    def _note(kept: KeptHidden, slots: torch.Tensor, output: Any, keeps: bool) -> None:
        hidden = output.hidden_states
        if keeps:
            kept.keep(slots, hidden)
            output.hidden_states = None  # nobody asked for them
        else:
            kept.forget(slots)


def of(scheduler: Any, config: SwitchConfig, most_tokens: int) -> DraftAlone | None:
    """None where the draft needs the target's hidden states and none are to be kept, or there is no draft model.

    Raises:
        ConfigError: the device has no room for the hidden states.
    """
    algorithm = scheduler.spec_algorithm
    if algorithm.is_standalone() or (config.draft_kv_budget and not algorithm.is_ngram()):
        return DraftAlone(scheduler, config, most_tokens)
    return None


def _ring(mib: int, slots: int, device: Any) -> KeptHidden:
    try:
        return KeptHidden(mib * _MIB, slots, device)
    except torch.OutOfMemoryError:
        free, _ = torch.get_device_module(device).mem_get_info(device)
        raise ConfigError(
            f"--specswitch-draft-kv-budget asks for {mib} MiB for hidden states, but beside the model, the KV pool and"
            f" the CUDA graphs the device has only {free // _MIB} MiB free: lower it, or lower --mem-fraction-static."
        ) from None


def within(ranges: Sequence[Range], room: int) -> list[Range]:
    """What is not empty of the ranges, up to ``room`` tokens in all, the longest first."""
    chosen = []
    for req, start, end in sorted(ranges, key=lambda reach: reach[1] - reach[2]):
        end = min(end, start + room)
        if end > start:
            chosen.append((req, start, end))
            room -= end - start
    return chosen


def begun_earlier(ranges: Sequence[Range], more: int) -> Sequence[Range]:
    """The ranges, some begun earlier for ``more`` tokens in all, or as they are where that many cannot be had.

    What is added the draft has seen, and is written again, the same to the same slots: only tokens that a request has
    put out itself and the prefix cache does not hold.
    """
    longer = []
    for req, start, end in ranges:
        seen = gap_of(req) is None or is_worth(req)  # else the draft lacks what comes before
        own = start - max(len(req.origin_input_ids), v2_compat.protected_len(req))
        back = max(0, min(more, own)) if seen else 0
        longer.append((req, start - back, end))
        more -= back
    return ranges if more else longer


def _is_plain_decode(batch: Any) -> bool:
    return bool(batch.forward_mode.is_decode() and batch.spec_algorithm.is_none())


def _wants_hidden_states(batch: Any) -> bool:
    """Whether a client asked for hidden states.

    SGLang 0.5.12 hands the target a ``ModelWorkerBatch``, which knows this by its ``capture_hidden_mode`` alone.
    """
    if hasattr(batch, "return_hidden_states"):
        return bool(batch.return_hidden_states)
    return bool(batch.capture_hidden_mode.need_capture())
