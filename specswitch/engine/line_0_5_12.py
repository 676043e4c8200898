"""What both workers of SGLang 0.5.11-0.5.12 have in common: the scheduler around them.

The scheduler picks its path by ``ScheduleBatch.spec_algorithm``.  A batch in *plain form* carries NONE and no
``spec_info``; then SGLang's own ``prepare_for_decode``, memory check, retraction, abort and finish handling are
those of a server without speculation.  This module converts the running batch between the two forms and keeps
every batch that joins while PLAIN in plain form.  What differs between the workers is in ``v1`` and ``v2_0_5_12``.

Relies on (0.5.12.post1): ``managers/scheduler.py`` ``Scheduler.get_next_batch_to_run``, ``update_running_batch``,
``run_batch``, ``process_batch_result``, ``get_internal_state``; ``observability/scheduler_metrics_mixin.py``
``report_decode_stats``; ``managers/schedule_batch.py`` ``ScheduleBatch.filter_batch``, ``prepare_for_decode``,
``new_tokens_required_next_decode``.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, Literal

import torch
from sglang.srt.managers.io_struct import GetInternalStateReq
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from specswitch.config import SwitchConfig
from specswitch.engine import draft_alone, kv
from specswitch.engine.base import (
    EngineFacts,
    PlainEntry,
    SpeculativeEntry,
    TurnListener,
)
from specswitch.engine.common import CommonEngine
from specswitch.engine.draft_alone import Range
from specswitch.engine.draft_gap import UnseenSlots, open_gap, set_gap
from specswitch.engine.draft_kv import (
    Extend,
    aside_batch,
    catch_up_ranges,
    start_at_gaps,
    turn_into_catch_up,
)
from specswitch.engine.hooks import swapped
from specswitch.engine.penalties import rebuild_penalties
from specswitch.engine.plain_graphs import PlainForward
from specswitch.engine.plain_launch import PlainLaunch
from specswitch.engine.prefix_slots import PrefixSlots
from specswitch.engine.supported_0_5_12 import unsupported_scheduler
from specswitch.errors import UnsupportedError
from specswitch.signals import Mode

NONE, _DECODE = SpeculativeAlgorithm.NONE, ForwardMode.DECODE
_TRACKING = "keeping track of draft KV in the prefix cache"
_LARGEST_EXTEND = 16384
"""Tokens of one catch-up forward at most, where SGLang does not chunk its prefills."""


class Line0512Engine(CommonEngine):
    """Switches a live scheduler of SGLang 0.5.11-0.5.12; see ``specswitch.engine.base.Engine``."""

    path: Literal["v1", "v2"]

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
            UnsupportedError: the model keeps state besides plain KV slots.
        """
        refusal = unsupported_scheduler(scheduler)
        if refusal is not None:
            raise UnsupportedError(refusal)
        args = scheduler.server_args
        self.facts = EngineFacts(
            release=release,
            path=self.path,
            worker=type(scheduler.draft_worker).__name__,
            overlap=scheduler.enable_overlap,
            algorithm=args.speculative_algorithm,
            topk=args.speculative_eagle_topk,
            num_steps=args.speculative_num_steps,
            num_draft_tokens=args.speculative_num_draft_tokens,
            page_size=scheduler.page_size,
        )
        self.rank: int = scheduler.tp_rank
        self._prepare(scheduler, config)
        chunk = (
            args.chunked_prefill_size
            if args.chunked_prefill_size and args.chunked_prefill_size > 0
            else _LARGEST_EXTEND
        )
        self._largest_extend = min(chunk, _LARGEST_EXTEND)
        self._prepare_beside(
            config.max_pause_ms,
            self._largest_extend,
            alone=draft_alone.of(scheduler, config, self._largest_extend),
            overlap=scheduler.enable_overlap or config.plain_overlap == "on",
            ranks=scheduler.tp_size,
        )
        self._unseen: UnseenSlots | None = None
        if self._has_draft_kv and not args.disable_radix_cache:
            allocator = scheduler.token_to_kv_pool_allocator
            self._unseen = UnseenSlots(allocator.size + scheduler.page_size, allocator.device)
            self._prefix_slots = PrefixSlots(
                scheduler, self._unseen, lambda req: req.req_pool_idx, lambda req: req.cache_protected_len
            )
        self._plain_launch = PlainLaunch(scheduler, plain_forward)
        self._awaits_other_loop = False
        """Whether a plain turn has something to do before it, also where no return is asked for."""
        self._held_batch: ScheduleBatch | None = None
        self._catch_up: Extend | None = None
        """The running batch is this extend, about to be launched."""
        self._catching_up = False
        """Whether such an extend was launched whose result has yet to be processed."""
        self._lacks_reserve = False
        """Whether the running batch has just returned, and its slots for draft tokens are allocated next turn."""
        self._settled: frozenset[str] | None = None
        """Requests whose every token was known when PLAIN was entered, until its first step is prepared."""

    # Engine

    def attach(self, listener: TurnListener) -> None:
        self._listener = listener
        self._reentry.report = listener.on_reentry
        scheduler, hooks = self._scheduler, self._hooks
        hooks.around(scheduler, "get_next_batch_to_run", self._around_next_batch)
        hooks.around(scheduler, "update_running_batch", self._around_update)
        hooks.around(scheduler, "run_batch", self._around_run)
        hooks.around(scheduler, "process_batch_result", self._around_process)
        hooks.around(scheduler, "report_decode_stats", self._around_decode_stats)
        self._census.attach(hooks)
        if self._unseen is not None:
            hooks.around(scheduler.tree_cache, "cache_finished_req", self._around_cache_finished)
            hooks.around(scheduler.tree_cache, "cache_unfinished_req", self._around_cache_unfinished)
        if self._alone is not None:
            self._alone.attach(hooks, listener.on_fault)
        # the dispatcher holds the bound method it was built with, so an instance attribute would not be seen
        hooks.replace_item(scheduler._request_dispatcher._mapping, GetInternalStateReq, self._internal_state)

    def drained(self) -> bool:
        return not self._decode_in_flight()

    def enter_plain(self) -> PlainEntry:
        scheduler, batch = self._scheduler, self._scheduler.running_batch
        reqs = [req for req in batch.reqs if not req.finished()]
        slots, count = self._reserved_slots(reqs)
        lengths = [req.kv_committed_len for req in reqs]

        batch.spec_algorithm, batch.spec_info, batch.output_ids = NONE, None, None
        self._drop_finished(batch)
        if reqs:
            if count:
                scheduler.token_to_kv_pool_allocator.free(slots)
            for req in reqs:
                req.kv_allocated_len = req.kv_committed_len
                open_gap(req, req.kv_committed_len)
            batch.seq_lens_cpu = torch.tensor(lengths, dtype=torch.int64)
            batch.seq_lens = batch.seq_lens_cpu.to(batch.device, copy=True)
            batch.orig_seq_lens = batch.seq_lens.to(torch.int32)
            batch.seq_lens_sum = sum(lengths)
            batch.output_ids = last_tokens(batch)
            batch.input_ids = batch.out_cache_loc = None
            batch.return_hidden_states = _wants_hidden_states(reqs)
        self._settled = frozenset(req.rid for req in reqs)
        self._plain, self._draining = True, False
        self._reentry.left()
        self.end_look()
        return PlainEntry(requests=len(reqs), slots_given_back=count)

    # Hooks

    def _around_next_batch(self, original: Callable[..., Any]) -> ScheduleBatch | None:
        scheduler = self._scheduler
        self._listener.on_turn()
        if self._plain:
            if self._return_asked or self._awaits_other_loop:
                with self._contained("preparing a plain turn"):
                    self._before_plain_turn()
            running = scheduler.running_batch
            if self._plain and (scheduler.last_batch is not running or running.spec_algorithm is not NONE):
                self._keep_plain_form()
        # a batch held for what was in flight, since a prefill would be in flight the turn after; or one that has
        # returned and takes its reserve now
        held = self._held_batch is not None and self._plain and self._return_asked is not None
        goes_first, self._lacks_reserve, self._held_batch = held or self._lacks_reserve, False, None
        with self._no_prefill_before(scheduler.running_batch) if goes_first else nullcontext():
            batch = original()
        if batch is None or batch.forward_mode is not _DECODE:
            # a prefill's launch too keeps the thread from the result of the step before it
            self._interrupted()
            if batch is not None and self._catch_up is None:
                self._wait.disturbed()
        if batch is not None and batch.forward_mode is not _DECODE and self._is_prefill(batch):
            self._before_prefill(batch)
        if self._held_batch is not None:
            scheduler.running_batch = self._held_batch
        return batch

    def _around_update(self, original: Callable[..., Any], batch: ScheduleBatch) -> ScheduleBatch:
        if self._draining:
            return self._hold(batch)
        if not self._plain:
            return original(batch)
        if self._return_asked:
            try:
                turn = self._turn_towards_return(batch)
            except Exception as error:
                self._give_up_return(error)
            else:
                if turn == "hold":
                    return self._hold(batch)
                if turn == "return":
                    return self._return_to_speculative(original, batch)
        batch = original(batch)
        if self._settled is not None:
            with self._contained("rebuilding penalties"):
                self._rebuild_penalties(batch, self._settled)
            self._settled = None
        return batch

    def _around_run(self, original: Callable[..., Any], batch: ScheduleBatch, *args: Any) -> Any:
        if batch.forward_mode is not _DECODE:
            returns = self._catch_up is not None and batch is self._scheduler.running_batch
            with self._timed_return() if returns else nullcontext():
                result = self._run_extend(original, batch, *args)
            if returns:
                # at once: as an extend, pause_generation and get_next_batch_to_run would merge it into itself
                batch.forward_mode = ForwardMode.DECODE
                result.specswitch_catch_up = self._catch_up
                self._catch_up, self._catching_up = None, True
            return result
        if batch.spec_algorithm is NONE:
            with self._plain_launch:
                return original(batch, *args)
        return original(batch, *args)

    def _run_extend(self, original: Callable[..., Any], batch: ScheduleBatch, *args: Any) -> Any:
        return original(batch, *args)

    def _around_process(self, original: Callable[..., Any], batch: ScheduleBatch, result: Any) -> None:
        catch_up: Extend | None = getattr(result, "specswitch_catch_up", None) if self._catching_up else None
        if catch_up is not None:
            self._catching_up = False
            with swapped(batch, spec_algorithm=NONE):
                original(batch, result)
            self._after_catch_up(batch)
            self._interrupted()
            self._has_last_token()
            self._listener.on_decode_step(Mode.PLAIN)
            self._finish_return(SpeculativeEntry(len(batch.reqs), self._reentry.tokens_caught_up))
            return
        original(batch, result)
        if batch.forward_mode is not _DECODE:
            self._interrupted()
            self._wait.disturbed()
            return
        try:
            self._count_step(batch, result)
        except Exception as error:
            self._listener.on_fault("counting a decode step", error)

    def _around_decode_stats(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        scheduler = self._scheduler
        if scheduler.spec_num_forward_ct:
            return original(*args, **kwargs)
        # a log interval without a verify step: the stock line divides by their number
        scheduler.spec_algorithm = NONE
        try:
            return original(*args, **kwargs)
        finally:
            scheduler.spec_algorithm = self._algorithm

    def _internal_state(self, request: GetInternalStateReq) -> Any:
        reply = self._scheduler.get_internal_state(request)
        with self._contained("showing the status"):
            reply.internal_state["specswitch"] = {**self._listener.status(), "draft_kv": self._draft_kv_status()}
        return reply

    # SPECULATIVE -> PLAIN

    def _reserved_slots(self, reqs: list[Any]) -> tuple[torch.Tensor | None, int]:
        """Slots past the page of each request's last committed token, and how many."""
        page = self._scheduler.page_size
        starts = [kv.ceil_to_page(req.kv_committed_len, page) for req in reqs]
        ends = [max(start, req.kv_allocated_len) for start, req in zip(starts, reqs, strict=True)]
        pages_end = [kv.ceil_to_page(end, page) for end in ends]
        count = sum(end - start for start, end in zip(starts, pages_end, strict=True))
        if not count:
            return None, 0
        req_to_token = self._scheduler.req_to_token_pool.req_to_token
        return kv.gather_slots(req_to_token, [req.req_pool_idx for req in reqs], starts, ends), count

    def _before_plain_turn(self) -> None:
        if self._return_asked and self._scheduler.running_batch.is_empty() and not self._result_in_flight():
            self._finish_return(SpeculativeEntry(requests=0, tokens_caught_up=0))

    def _keep_plain_form(self) -> None:
        """Bring what was prefilled speculatively, and joins the running batch this turn, into plain form."""
        scheduler = self._scheduler
        for batch in (scheduler.running_batch, scheduler.last_batch):
            if batch is None or batch.spec_algorithm is NONE or batch.is_empty():
                continue
            if batch is scheduler.last_batch and not batch.forward_mode.is_extend():
                continue
            batch.spec_algorithm, batch.spec_info = NONE, None
            self._joins_plain(batch)
            with self._contained("noting a prefill"):
                self._note_prefilled(batch)

    def _note_prefilled(self, batch: ScheduleBatch) -> None:
        batch.return_hidden_states = _wants_hidden_states(batch.reqs)  # the v1 worker's prefill clears it
        for req, length in zip(batch.reqs, batch.seq_lens_cpu.tolist(), strict=True):
            open_gap(req, length)

    def _hold(self, batch: ScheduleBatch) -> ScheduleBatch:
        """Launch no decode this turn: get_next_batch_to_run drops an empty batch, and gets the real one back after."""
        self._held_batch = batch
        return ScheduleBatch(reqs=[], batch_is_full=batch.batch_is_full)

    def _rebuild_penalties(self, batch: ScheduleBatch, settled: Iterable[str] | None) -> None:
        if batch.is_empty() or not batch.sampling_info.penalizer_orchestrator.is_required:
            return
        histories = [self._counted_tokens(req, settled is None or req.rid in settled) for req in batch.reqs]
        rebuild_penalties(batch.sampling_info, histories, self._scheduler.model_config.vocab_size)

    # PLAIN -> SPECULATIVE

    def _turn_towards_return(self, batch: ScheduleBatch) -> Literal["plain", "hold", "return"]:
        """What this turn does on the way back: a plain step, perhaps after some catching up; nothing; or the return."""
        if not self._can_return(batch):
            return "plain"
        if self._return_asked == "catch-up" and self._catch_up_alone(batch.reqs):
            return "plain"
        if self._needs_aside(batch):
            self._catch_up_aside(batch.reqs)
            return "plain"
        return "hold" if self._result_in_flight() else "return"

    def _can_return(self, batch: ScheduleBatch) -> bool:
        """Not while a request wants hidden states: a catch-up would put out those of every token it covers."""
        return not batch.return_hidden_states and self._has_room_to_return(batch)

    def _give_up_return(self, error: Exception) -> None:
        self._return_asked = None
        self._listener.on_fault("returning to SPECULATIVE", error)

    def _has_room_to_return(self, batch: ScheduleBatch) -> bool:
        """Whether the pool can hold every request's speculative reserve without retracting any."""
        scheduler = self._scheduler
        with swapped(batch, spec_algorithm=self._algorithm, enable_overlap=self.facts.overlap):
            needed = batch.new_tokens_required_next_decode()
        # besides the reserve, a slot each for the catch-up's token and for the second verify step, already launched
        # when the first one's result is seen
        return self._return_room.suffices(needed + 2 * len(batch.reqs) * scheduler.page_size)

    def _return_to_speculative(self, original: Callable[..., Any], batch: ScheduleBatch) -> ScheduleBatch:
        if self._return_asked == "cold" or not self._has_draft_kv:
            return self._return_cold(original, batch)
        batch = original(batch)  # filter, memory check, retraction, and one slot for the token to come
        if batch.is_empty():
            self._finish_return(SpeculativeEntry(0, 0))
            return batch
        try:
            ranges = catch_up_ranges(batch)
            tokens = sum(end - start for _, start, end in ranges)
            _, starts, ends = zip(*self._filled_up(ranges), strict=True)
            catch_up = Extend.over(batch, starts, ends)
        except Exception as error:
            self._give_up_return(error)
            return batch
        with self._contained("rebuilding penalties"):
            self._rebuild_penalties(batch, settled=None)
        with self._contained("keeping track of draft KV"):
            self._note_caught_up(batch.reqs, True, tokens)
        turn_into_catch_up(batch, catch_up)
        batch.spec_algorithm = self._algorithm
        self._catch_up, self._lacks_reserve = catch_up, True
        self._plain, self._return_asked = False, None
        return batch

    def _return_cold(self, original: Callable[..., Any], batch: ScheduleBatch) -> ScheduleBatch:
        self._drop_finished(batch)
        if not batch.is_empty():
            spec_info = None
            if self._has_draft_kv:
                try:
                    spec_info = self._cold_draft_input(batch)
                except Exception as error:
                    self._give_up_return(error)
                    return original(batch)
                with self._contained("keeping track of draft KV"):
                    self._note_caught_up(batch.reqs, False, 0)
            batch.spec_algorithm, batch.spec_info = self._algorithm, spec_info
        self._finish_return(SpeculativeEntry(len(batch.reqs), 0))
        return original(batch)

    def _needs_aside(self, batch: ScheduleBatch) -> bool:
        """Whether a catch-up of the batch would cover more tokens than one pause allows."""
        if self._return_asked == "cold" or not self._has_draft_kv:
            return False
        return self._is_more_than_a_pause(batch.reqs)

    def write_draft_kv(self, ranges: Sequence[Range], alone: bool = False) -> None:
        batch = aside_batch(self._scheduler, ranges)
        with self._after_launches(), self._target_aside(ranges, batch.out_cache_loc, alone):
            self._forward_aside(batch)

    # Prefixes

    def _is_prefill(self, batch: ScheduleBatch) -> bool:
        return bool(batch.forward_mode.is_extend()) and self._catch_up is None

    def _before_prefill(self, batch: ScheduleBatch) -> None:
        if self._has_draft_kv:
            with self._contained("filling a cached prefix"):
                self._note_prefix_gaps(batch)

    def _note_prefix_gaps(self, batch: ScheduleBatch) -> None:
        """Find what the draft misses in the cached prefixes of a prefill, and let the prefill write it."""
        gaps: list[int | None] = [None] * len(batch.reqs)
        if self._unseen is not None and self._unseen.any and any(batch.prefix_lens):
            rows = [req.req_pool_idx for req in batch.reqs]
            req_to_token = self._scheduler.req_to_token_pool.req_to_token
            slots = kv.gather_slots(req_to_token, rows, [0] * len(rows), batch.prefix_lens)
            gaps = self._unseen.gaps_in(slots, batch.prefix_lens)
            if not self._has_embeddings(batch):
                gaps = self._fill_alone(batch.reqs, gaps, batch.prefix_lens)
            missing = sum(prefix - gap for prefix, gap in zip(batch.prefix_lens, gaps, strict=True) if gap is not None)
            if 0 < missing <= self._largest_extend and not self._has_embeddings(batch):
                self.draft_stats.prefix_tokens_filled += start_at_gaps(batch, gaps)
                gaps = [None] * len(batch.reqs)
            else:
                self.draft_stats.prefix_tokens_skipped += missing
        for req, gap in zip(batch.reqs, gaps, strict=True):
            set_gap(req, gap)

    @staticmethod
    def _has_embeddings(batch: ScheduleBatch) -> bool:
        """Whether part of the prompt is not made of token ids."""
        return batch.input_embeds is not None or batch.replace_embeds is not None or batch.token_type_ids is not None

    def _around_cache_finished(self, original: Callable[..., Any], req: Any, is_insert: bool = True) -> Any:
        if is_insert:
            self._going_in(req, min(req.kv_committed_len, len(req.origin_input_ids) + len(req.output_ids)))
        return original(req, is_insert=is_insert)

    def _around_cache_unfinished(self, original: Callable[..., Any], req: Any, **kwargs: Any) -> Any:
        length = len(req.fill_ids)
        self._going_in(req, length)
        result = original(req, **kwargs)
        with self._contained(_TRACKING):
            self._prefix_slots.gone_in(req, length)
        return result

    def _going_in(self, req: Any, length: int) -> None:
        with self._contained(_TRACKING):
            self._prefix_slots.going_in(req, length)

    def _finish_return(self, entry: SpeculativeEntry) -> None:
        self._plain, self._return_asked, self._settled = False, None, None
        self._reentry.returned(entry.requests)
        self._wait.end()
        self._listener.on_returned(entry)

    # What differs between the workers

    @abc.abstractmethod
    def _decode_in_flight(self) -> bool:
        """Whether a launched decode batch's result has yet to be processed."""

    @abc.abstractmethod
    def _result_in_flight(self) -> bool:
        """Whether any launched batch's result has yet to be processed."""

    @abc.abstractmethod
    def _counted_tokens(self, req: Any, settled: bool) -> list[int]:
        """The tokens a plain server has fed to the penalizers when it launches this request's next step."""

    @abc.abstractmethod
    def _forward_aside(self, batch: ScheduleBatch) -> None:
        """Run a batch through the speculative worker, after all launches; its result is dropped."""

    @abc.abstractmethod
    def _cold_draft_input(self, batch: ScheduleBatch) -> Any:
        """A draft input that knows only the last token of each request."""

    def _joins_plain(self, batch: ScheduleBatch) -> None:
        """A prefilled batch was brought into plain form."""

    def _after_catch_up(self, batch: ScheduleBatch) -> None:
        """The catch-up's result was processed as one plain decode step."""


def last_tokens(batch: ScheduleBatch) -> torch.Tensor:
    """The last token of each request, int64 ``[batch size]``, as they are known on the CPU."""
    return torch.tensor([req.output_ids[-1] for req in batch.reqs], dtype=torch.int64).to(batch.device)


def _wants_hidden_states(reqs: Iterable[Any]) -> bool:
    return any(req.return_hidden_states for req in reqs)


def tokens_counted_with_overlap(req: Any, settled: bool) -> list[int]:
    """What a plain server has fed to the penalizers: the overlap loop is one step late, and the prompt's last token
    comes first."""
    known = list(req.output_ids)
    return [req.origin_input_ids[-1], *(known[:-1] if settled else known)]
