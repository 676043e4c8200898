"""The engine for SGLang 0.5.13 to 0.5.23, whose only speculative workers are those of the ``EAGLEWorkerV2`` family.

A running batch is converted in place (``v2_batch``).  While PLAIN, decode batches go to the target's ``TpModelWorker``
through SGLang's own scheduler code; prefills keep going through the speculative worker, so that every request has
draft KV up to the end of its prompt and can speculate later.  On return the running batch is launched once as an
extend over the tokens the draft has not seen and the pending one: the target runs again over them (the same keys and
values go to the same slots), its hidden states feed the draft's prefill, one token comes out, and SGLang merges the
batch back as it merges a prefill.  A cold return is the same with the pending token alone.

Both conversions need every result processed, because under overlap a request's tokens and lengths lag the batch.

Relies on ``sglang/srt/managers/scheduler.py`` ``Scheduler``: ``get_next_batch_to_run``, ``update_running_batch``,
``run_batch``, ``launch_batch_sample_if_needed``, ``process_batch_result``, ``_apply_war_barrier`` and the attributes
used below; ``managers/overlap_utils.py`` ``FutureMap.stash`` and ``output_tokens_buf``;
``managers/scheduler_components/metrics_reporter.py`` ``report_decode_stats`` and ``report_prefill_stats``; what
differs between the releases is in ``v2_compat``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from specswitch.config import SwitchConfig
from specswitch.engine import draft_alone, kv, v2_batch, v2_compat
from specswitch.engine.base import (
    DraftKV,
    EngineFacts,
    PlainEntry,
    SpeculativeEntry,
    TurnListener,
)
from specswitch.engine.common import CommonEngine
from specswitch.engine.draft_alone import Range
from specswitch.engine.draft_gap import UnseenSlots, gap_of, open_gap, set_gap
from specswitch.engine.draft_kv import is_worth
from specswitch.engine.hooks import swapped
from specswitch.engine.penalties import rebuild_penalties
from specswitch.engine.plain_graphs import PlainForward, plain_forward
from specswitch.engine.plain_launch import PlainLaunch
from specswitch.engine.prefix_slots import PrefixSlots
from specswitch.engine.supported_v2 import unsupported, unsupported_scheduler
from specswitch.errors import UnsupportedError

__all__ = ["V2Engine", "create", "unsupported"]

_LARGEST_EXTEND = 16384
"""Tokens of one forward over missing draft KV at most, where SGLang does not chunk its prefills."""
_MOST_CHUNKS = 4
"""Forwards of the largest size that writing the draft KV of reused prefixes may take before one prefill."""
_FREE_RIDE = 1024
"""Tokens up to which a forward takes little longer than its floor (docs/benchmarks: 20 ms, 22 microseconds a token)."""


class V2Engine(CommonEngine):
    """Switches a live scheduler; see ``specswitch.engine.base.Engine``."""

    def __init__(
        self,
        scheduler: Any,
        release: str,
        plain_forward: PlainForward,
        config: SwitchConfig,
    ) -> None:
        """
        Args:
            scheduler: SGLang's ``Scheduler``, fully constructed.
            release: SGLang's version.
            plain_forward: how the target decodes one token per request.
            config: what the operator decided.

        Raises:
            UnsupportedError: the model keeps state besides one pool of KV slots.
        """
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        refusal = unsupported_scheduler(scheduler)
        if refusal is not None:
            raise UnsupportedError(refusal)
        worker = scheduler.draft_worker
        self.facts = EngineFacts(
            release=release,
            path="v2",
            worker=type(worker).__name__,
            overlap=scheduler.enable_overlap,
            algorithm=scheduler.spec_algorithm.name,
            topk=getattr(worker, "topk", None),
            num_steps=getattr(worker, "speculative_num_steps", None),
            num_draft_tokens=scheduler.server_args.speculative_num_draft_tokens,
            page_size=scheduler.page_size,
        )
        self._prepare(scheduler, config)
        self._decode = ForwardMode.DECODE
        self._plain_launch = PlainLaunch(scheduler, plain_forward, scheduler.future_map)
        self._processor_counts_the_tail = v2_compat.processor_counts_the_tail()

        chunk = scheduler.chunked_prefill_size
        self._largest_extend: int = min(chunk, _LARGEST_EXTEND) if chunk else _LARGEST_EXTEND
        self._prepare_beside(
            config.max_pause_ms,
            self._largest_extend,
            alone=draft_alone.of(scheduler, config, self._largest_extend),
            overlap=scheduler.enable_overlap,
            ranks=scheduler.server_args.tp_size,
        )
        allocator = scheduler.token_to_kv_pool_allocator
        self._unseen = UnseenSlots(allocator.size + scheduler.page_size, allocator.device)
        self._prefix_slots = PrefixSlots(scheduler, self._unseen, v2_compat.row_index, v2_compat.protected_len)

        self._held: Any = None
        """The running batch, in a turn that launches no decode."""
        self._returning: Any = None
        """The running batch, in the turn that launches it as an extend."""
        self._penalties_due = False
        """Whether the penalty state still lacks what was put out while speculating."""
        self._last_launch_plain = False

    # Engine

    def attach(self, listener: TurnListener) -> None:
        self._listener = listener
        self._reentry.report = listener.on_reentry
        scheduler, hooks = self._scheduler, self._hooks
        hooks.around(scheduler, "get_next_batch_to_run", self._around_next_batch)
        hooks.around(scheduler, "update_running_batch", self._around_update)
        hooks.around(scheduler, "run_batch", self._around_run)
        hooks.around(scheduler, "launch_batch_sample_if_needed", self._around_delayed_sample)
        hooks.around(scheduler, "process_batch_result", self._around_process)
        if hasattr(scheduler, "_apply_war_barrier"):
            hooks.around(scheduler, "_apply_war_barrier", self._around_war_barrier)
        hooks.around(scheduler.future_map, "stash", self._around_stash)
        hooks.around(scheduler.metrics_reporter, "report_decode_stats", self._around_decode_stats)
        hooks.around(scheduler.metrics_reporter, "report_prefill_stats", self._around_prefill_stats)
        self._census.attach(hooks)
        if self._has_draft_kv:
            v2_compat.hook_prefix_inserts(hooks, scheduler.tree_cache, self._going_in, self._gone_in)
        if self._alone is not None:
            self._alone.attach(hooks, listener.on_fault)
        v2_compat.hook_internal_state(hooks, scheduler, self._around_internal_state)

    def drained(self) -> bool:
        return not self._in_flight()

    def enter_plain(self) -> PlainEntry:
        if not self.drained():
            raise RuntimeError("PLAIN was to be entered while a result was in flight; the batch is unchanged")
        batch = self._scheduler.running_batch
        running = [req for req in batch.reqs if not req.finished()]
        everyone = [*running, *(req for req in self._census.just_prefilled() if not req.finished())]
        given_back = self._rebuild_plain(batch, running, everyone)
        if self._has_draft_kv:
            for req in everyone:
                open_gap(req, v2_compat.committed_len(req))
        self._plain, self._draining, self._penalties_due = True, False, True
        self._reentry.left()
        self.end_look()
        return PlainEntry(requests=len(everyone), slots_given_back=given_back)

    # Hooks

    def _around_next_batch(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        scheduler = self._scheduler
        self._listener.on_turn()
        if self._plain and self._return_asked:
            self._insist("returning to SPECULATIVE", self._return_if_nobody_runs)
        # held for what was in flight: a prefill would be in flight the turn after
        goes_first = self._held is not None and self._plain and self._return_asked is not None
        if goes_first:
            with self._contained("dropping finished requests"):
                self._drop_finished(scheduler.running_batch)  # SGLang would, and look for requests to admit then
        self._held = self._returning = None
        with self._no_prefill_before(scheduler.running_batch) if goes_first else nullcontext():
            plan = original(*args, **kwargs)
        chosen = v2_compat.batch_to_run(plan)
        if chosen is None or chosen.forward_mode is not self._decode:
            # a prefill's launch too keeps the thread from the result of the step before it
            self._interrupted()
            if chosen is not None and chosen is not self._returning:
                self._wait.disturbed()
        if self._held is not None:
            v2_compat.set_running_batch(scheduler, plan, self._held)
        elif self._returning is not None:
            # as a prefill runs: outside the running batch, into which SGLang merges it next turn
            v2_compat.set_running_batch(scheduler, plan, v2_batch.empty(self._returning))
        elif chosen is not None and chosen.forward_mode is not self._decode and self._is_prefill(chosen):
            with self._contained("looking for draft KV in reused prefixes"):
                self._note_prefix_gaps(chosen)
        return plan

    def _around_update(self, original: Callable[..., Any], batch: Any) -> Any:
        if self._draining:
            with self._contained("holding the decode batch"):
                return self._hold(batch)
        if not self._plain:
            return original(batch)
        if batch.spec_algorithm is not self._none:
            self._insist("bringing a prefill into plain form", self._bring_into_plain_form, batch)
        if self._return_asked:
            try:
                converted = self._try_to_return(original, batch, self._return_asked)
            except Exception as error:
                self._return_asked = None
                self._listener.on_fault("returning to SPECULATIVE", error)
            else:
                if converted is not None:
                    return converted
        prepared = original(batch)
        if self._penalties_due and prepared is not None:
            with self._contained("rebuilding penalties"):
                self._rebuild_penalties(prepared)
            self._penalties_due = False
        return prepared

    def _around_run(self, original: Callable[..., Any], batch: Any, *args: Any, **kwargs: Any) -> Any:
        self._last_launch_plain = batch.forward_mode is self._decode and batch.spec_algorithm is self._none
        if self._last_launch_plain:
            if not self._scheduler.enable_overlap:
                v2_batch.drop_accumulated_penalties(batch.sampling_info)
            with self._plain_launch:
                return original(batch, *args, **kwargs)
        with self._timed_return() if batch is self._returning else nullcontext():
            result = original(batch, *args, **kwargs)
        if self._plain and batch.forward_mode.is_extend():
            self._insist("keeping the tokens of a prefill", self._note_prefilled, batch)
        return result

    def _around_delayed_sample(self, original: Callable[..., Any], result: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(result, "delay_sample_func", None) is None:
            return original(result, *args, **kwargs)
        with self._plain_launch:  # only a plain batch samples late
            return original(result, *args, **kwargs)

    def _around_process(self, original: Callable[..., Any], batch: Any, result: Any) -> None:
        original(batch, result)
        try:
            if batch.forward_mode is self._decode:
                self._count_step(batch, result)
            else:
                self._interrupted()
                if self._plain:
                    self._wait.disturbed()
                else:
                    self._has_last_token()
        except Exception as error:
            self._listener.on_fault("counting a decode step", error)

    def _around_war_barrier(self, original: Callable[[], None]) -> None:
        if not self._last_launch_plain:
            return original()
        # the runner whose reads the next turn waits for is the target's
        scheduler = self._scheduler
        worker, scheduler.model_worker = scheduler.model_worker, scheduler.tp_worker
        try:
            return original()
        finally:
            scheduler.model_worker = worker

    def _around_stash(self, original: Callable[..., None], rows: Any, payload: Any) -> None:
        if not self._plain_launch.active:
            return original(rows, payload)
        return v2_compat.stash_tokens(self._scheduler.future_map, rows, payload)

    def _around_decode_stats(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        scheduler = self._scheduler
        if scheduler.metrics_reporter.spec_num_forward_ct:
            return original(*args, **kwargs)
        # a log interval without a verify step: SGLang would divide by their number
        scheduler.spec_algorithm = self._none
        try:
            return original(*args, **kwargs)
        finally:
            scheduler.spec_algorithm = self._algorithm

    def _around_prefill_stats(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("prefill_stats", args) is None:
            return None  # a running batch that was launched as an extend (SGLang 0.5.19 and later skip it themselves)
        return original(*args, **kwargs)

    def _around_internal_state(self, original: Callable[..., Any], request: Any) -> Any:
        reply = original(request)
        with self._contained("showing the status"):
            reply.internal_state["specswitch"] = {**self._listener.status(), "draft_kv": self._draft_kv_status()}
        return reply

    def _insist(self, doing: str, step: Callable[..., Any], *args: Any) -> Any:
        """Do what SGLang cannot go on without: report a fault to the Switch, and try once more."""
        try:
            return step(*args)
        except Exception as error:
            self._listener.on_fault(doing, error)
        return step(*args)

    # SPECULATIVE -> PLAIN

    def _rebuild_plain(self, batch: Any, running: Sequence[Any], everyone: Sequence[Any]) -> int:
        """Put the running batch into plain form and let plain decode find everyone's last token.

        ``everyone`` adds to the ``running`` requests of ``batch`` those that join it this turn.  Raises before the
        first change, or not at all.

        Returns:
            KV slots given back.
        """
        scheduler = self._scheduler
        for req in everyone:
            _check_settled(req)
        reserve = v2_batch.Reserve.of(everyone, scheduler.req_to_token_pool.req_to_token, scheduler.page_size)
        device = scheduler.req_to_token_pool.req_to_token.device
        rows = v2_batch.to_device([v2_compat.row_index(req) for req in everyone], torch.int64, device)
        last_tokens = v2_batch.to_device([req.output_ids[-1] for req in everyone], torch.int64, device)

        given_back = reserve.give_back(scheduler.token_to_kv_pool_allocator)
        self._drop_finished(batch)
        v2_batch.drop_speculation(batch)
        if running:
            v2_batch.set_lengths(batch, [v2_compat.committed_len(req) for req in running])
            batch.input_ids = batch.out_cache_loc = None
        scheduler.future_map.output_tokens_buf[rows] = last_tokens
        return given_back

    def _hold(self, batch: Any) -> Any:
        """Launch no decode this turn: ``get_next_batch_to_run`` launches nothing for an empty batch."""
        self._held = batch
        return v2_batch.empty(batch)

    def _bring_into_plain_form(self, batch: Any) -> None:
        """A batch that was prefilled, speculatively, while nobody ran has become the running one as it was.

        One that joins a running batch does not need this: ``merge_batch`` goes by the form of the running one.
        """
        v2_batch.drop_speculation(batch)

    def _note_prefilled(self, batch: Any) -> None:
        """Keep what plain decode needs of a speculative prefill, each request's token, and note where the draft's
        knowledge ends."""
        spec_info = batch.spec_info
        if self._has_draft_kv:
            tokens = spec_info.bonus_tokens
            for req in batch.reqs:
                open_gap(req, v2_compat.extend_end(req))
        else:
            tokens = spec_info.accept_tokens.reshape(len(batch.reqs), -1)[:, 0]
        buffer = self._scheduler.future_map.output_tokens_buf
        with self._forward_stream():
            buffer[batch.req_pool_indices] = tokens.to(buffer.dtype)

    def _rebuild_penalties(self, batch: Any) -> None:
        """Give the penalizers what a server that never speculated holds when it launches this batch."""
        if batch.is_empty() or not batch.sampling_info.penalizer_orchestrator.is_required:
            return
        histories = [self._counted_tokens(req) for req in batch.reqs]
        rebuild_penalties(batch.sampling_info, histories, self._scheduler.model_config.vocab_size)

    def _counted_tokens(self, req: Any) -> Sequence[int]:
        outputs: Sequence[int] = req.output_ids
        if not self._scheduler.enable_overlap:
            return outputs
        # the overlap loop counts each token one step late, and the prompt's last token first
        return [req.origin_input_ids[-1], *outputs[:-1]]

    # PLAIN -> SPECULATIVE

    def _return_if_nobody_runs(self) -> None:
        """There is nothing to convert; a prefill that becomes the running batch this turn is speculative already."""
        running = self._scheduler.running_batch
        if self._return_asked:
            self._drop_finished(running)
            if running.is_empty():
                self._forget_prefilled(self._scheduler.last_batch)
                self._finish_return(SpeculativeEntry(requests=0, tokens_caught_up=0))

    def _forget_prefilled(self, batch: Any) -> None:
        """No plain step has followed the prefill: the draft has seen what it was shown."""
        if batch is None or not self._is_prefill(batch):
            return
        for req in batch.reqs:
            if gap_of(req) == v2_compat.extend_end(req):
                set_gap(req, None)

    def _try_to_return(self, original: Callable[..., Any], batch: Any, draft_kv: DraftKV) -> Any:
        """What to hand to the scheduler instead of a plain decode batch, or None to stay plain this turn.

        The batch stays plain while the pool cannot hold every request's speculative reserve, so that the return
        retracts nobody, and while more draft KV is missing than one pause allows; that is then written beside the
        plain steps, a part each turn.
        """
        self._drop_finished(batch)
        if batch.is_empty() or not self._has_room_to_return(batch) or self._needs_plain(batch):
            return None
        catch_up = draft_kv == "catch-up" and self._has_draft_kv
        if catch_up and self._catch_up_alone(batch.reqs):
            return None
        if catch_up and self._is_more_than_a_pause(batch.reqs):
            self._catch_up_aside(batch.reqs)
            return None
        if self._in_flight():
            return self._hold(batch)
        return self._return_to_speculative(original, batch, catch_up)

    def _has_room_to_return(self, batch: Any) -> bool:
        scheduler = self._scheduler
        with swapped(batch, spec_algorithm=self._algorithm):
            if not self._fits_its_rows(batch):
                return False
            needed = batch.new_tokens_required_next_decode()
        return self._return_room.suffices(needed + len(batch.reqs) * scheduler.page_size)

    def _fits_its_rows(self, batch: Any) -> bool:
        """Whether each request's row of slots can hold what its next decode step in this form allocates.

        SGLang's rows are wide enough for a tree's reserve with pages above 1 alone (``mem_cache/allocation_sizing.py``
        ``get_req_to_token_extra_context_len``): near the end of the context it would write into the next row.
        """
        scheduler = self._scheduler
        width: int = scheduler.req_to_token_pool.req_to_token.shape[1]
        return all(
            kv.ceil_to_page(v2_compat.allocated_len(req), scheduler.page_size)
            + batch.new_tokens_required_next_decode([index])
            <= width
            for index, req in enumerate(batch.reqs)
        )

    def _needs_plain(self, batch: Any) -> bool:
        """Whether a request wants hidden states: an extend would put out those of every token it covers."""
        return bool(batch.return_hidden_states)

    def _return_to_speculative(self, original: Callable[..., Any], batch: Any, catch_up: bool) -> Any:
        batch.spec_algorithm = self._algorithm
        try:
            original(batch)  # memory check, retraction, and the speculative reserve of every request
            reqs = list(batch.reqs)
            ends = [v2_compat.committed_len(req) for req in reqs]
            starts = [_catch_up_start(req, end) if catch_up else end for req, end in zip(reqs, ends, strict=True)]
            tokens = sum(ends) - sum(starts)
            if reqs:
                self._rebuild_penalties(batch)
                ranges: Sequence[Range] = [
                    (req, start, end + 1) for req, start, end in zip(reqs, starts, ends, strict=True)
                ]
                self._make_extend(batch, self._filled_up(ranges) if catch_up else ranges)
            self._finish_return(SpeculativeEntry(len(reqs), self._reentry.tokens_caught_up + tokens))
        except BaseException:
            for req in batch.reqs:
                v2_compat.set_committed_len(req, _settled_len(req))
            self._rebuild_plain(batch, batch.reqs, batch.reqs)
            raise
        self._returning = batch if reqs else None
        with self._contained("keeping track of draft KV"):
            if self._has_draft_kv:
                self._note_caught_up(reqs, catch_up, tokens)
        return batch

    def _make_extend(self, batch: Any, ranges: Sequence[Range]) -> None:
        """Rewrite a batch prepared for speculation as an extend over ``ranges`` of its requests' tokens, each up to and
        including the pending one."""
        v2_batch.launch_running_as_extend(batch, v2_batch.TokenRanges(*zip(*ranges, strict=True)))
        for req, start, end in ranges:
            v2_compat.set_extend_end(req, start, end)
            if not self._processor_counts_the_tail:
                v2_compat.set_committed_len(req, end)
        # not prefilled just now: nothing of theirs goes to the prefix cache when the result is processed
        batch.decoding_reqs = frozenset(batch.reqs)

    def _finish_return(self, entry: SpeculativeEntry) -> None:
        self._plain, self._return_asked, self._penalties_due = False, None, False
        self._reentry.returned(entry.requests)
        if not entry.requests:
            self._wait.end()
        self._listener.on_returned(entry)

    def write_draft_kv(self, ranges: Sequence[Range], alone: bool = False) -> None:
        from sglang.srt.managers.overlap_utils import resolve_forward_inputs

        scheduler = self._scheduler
        with self._after_launches():
            # made on this stream, so that nothing of it is reused before the forward has read it
            batch = v2_batch.aside(scheduler, ranges)
            resolve_forward_inputs(batch, scheduler.future_map)
            with self._target_aside(ranges, batch.out_cache_loc, alone):
                scheduler.draft_worker.forward_batch_generation(batch)

    # Prefixes

    def _is_prefill(self, batch: Any) -> bool:
        """Whether it writes draft KV of prompts."""
        return bool(self._has_draft_kv and batch.forward_mode.is_extend())

    def _note_prefix_gaps(self, batch: Any) -> None:
        """Find what the draft misses in the cached prefixes of a prefill, and write it.

        While PLAIN only what costs next to nothing: most of these requests will have finished before the return, and
        the rest catch up then.
        """
        gaps: list[int | None] = [None] * len(batch.reqs)
        if self._unseen.any and any(batch.prefix_lens):
            gaps = self._gaps_in_prefixes(batch)
            if v2_batch.is_all_tokens(batch):
                gaps = self._fill_alone(batch.reqs, gaps, batch.prefix_lens)
            missing = sum(prefix - gap for prefix, gap in zip(batch.prefix_lens, gaps, strict=True) if gap is not None)
            most = _FREE_RIDE - batch.extend_num_tokens if self._plain else _MOST_CHUNKS * self._largest_extend
            if 0 < missing <= most and v2_batch.is_all_tokens(batch):
                self._fill_prefixes(batch, gaps, missing)
                self.draft_stats.prefix_tokens_filled += missing
                gaps = [None] * len(batch.reqs)
            else:
                self.draft_stats.prefix_tokens_skipped += missing
        for req, gap in zip(batch.reqs, gaps, strict=True):
            set_gap(req, gap)

    def _fill_prefixes(self, batch: Any, gaps: Sequence[int | None], missing: int) -> None:
        """Let the prefill start at the gaps, or where that makes it too large, write them in forwards before it."""
        if batch.extend_num_tokens + missing <= self._largest_extend:
            v2_batch.start_at_gaps(batch, gaps)
            return
        # up to the first token of the prefill's own, which the prefill then writes again
        ranges = [
            (req, gap, prefix + 1)
            for req, gap, prefix in zip(batch.reqs, gaps, batch.prefix_lens, strict=True)
            if gap is not None
        ]
        for part in v2_batch.parts(ranges, self._largest_extend):
            self.write_draft_kv(part)

    def _gaps_in_prefixes(self, batch: Any) -> list[int | None]:
        rows = [v2_compat.row_index(req) for req in batch.reqs]
        req_to_token = self._scheduler.req_to_token_pool.req_to_token
        slots = kv.gather_slots(req_to_token, rows, [0] * len(rows), batch.prefix_lens)
        return self._unseen.gaps_in(slots, batch.prefix_lens)

    def _going_in(self, req: Any, length: int) -> None:
        with self._contained("keeping track of draft KV in the prefix cache"):
            self._prefix_slots.going_in(req, length)

    def _gone_in(self, req: Any, length: int) -> None:
        with self._contained("keeping track of draft KV in the prefix cache"):
            self._prefix_slots.gone_in(req, length)

    # Helpers

    def _in_flight(self) -> bool:
        # the event loop makes the queue when it starts
        return bool(self._scheduler.enable_overlap and getattr(self._scheduler, "result_queue", None))

    def _forward_stream(self) -> AbstractContextManager[Any]:
        """The stream on which forwards run."""
        scheduler = self._scheduler
        return scheduler.forward_stream_ctx if scheduler.enable_overlap else nullcontext()

    @contextmanager
    def _after_launches(self) -> Iterator[None]:
        """On the stream of the forwards, after all that was launched on either stream."""
        scheduler = self._scheduler
        with self._forward_stream():
            if scheduler.enable_overlap:
                scheduler.forward_stream.wait_stream(scheduler.schedule_stream)
            yield


def _settled_len(req: Any) -> int:
    """How many tokens of ``req`` have KV when no result is in flight: all but the last one put out."""
    return len(req.origin_input_ids) + len(req.output_ids) - 1


def _check_settled(req: Any) -> None:
    committed, expected = v2_compat.committed_len(req), _settled_len(req)
    if committed != expected:
        raise RuntimeError(
            f"request {req.rid} has KV for {committed} tokens where {expected} were expected;"
            " the batch was left as it was"
        )


def _catch_up_start(req: Any, end: int) -> int:
    """Where the catch-up of a request with ``end`` tokens in the KV cache starts."""
    gap = gap_of(req)
    return end if gap is None or not is_worth(req) else min(gap, end)


def create(scheduler: Any, release: str, config: SwitchConfig) -> V2Engine:
    """The engine for ``scheduler``; raises :class:`specswitch.errors.UnsupportedError`."""
    return V2Engine(scheduler, release, plain_forward(scheduler), config)
