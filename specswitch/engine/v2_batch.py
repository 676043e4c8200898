"""Rebuilding a ``ScheduleBatch`` of SGLang 0.5.13 to 0.5.23 between its plain and its speculative form.

SGLang picks a batch's path by ``ScheduleBatch.spec_algorithm``.  A batch in *plain form* carries NONE and no
``spec_info``, and its lengths count every token but the pending one; SGLang's own ``prepare_for_decode``, memory
check, retraction and finish handling then do what they do on a server without speculation.

Relies on ``sglang/srt/managers/schedule_batch.py``: the fields named here; ``sglang/srt/speculative/spec_info.py``
``SpeculativeAlgorithm.NONE``; ``sglang/srt/model_executor/forward_batch_info.py`` ``ForwardMode.EXTEND``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specswitch.engine import kv, v2_compat
from specswitch.engine.kv import token_range


def to_device(values: Sequence[int], dtype: torch.dtype, device: Any) -> torch.Tensor:
    """A 1-d tensor of ``values`` on ``device``, copied without waiting for it."""
    return _host(values, dtype, device).to(device, non_blocking=True)


def _host(values: Sequence[int], dtype: torch.dtype, device: Any) -> torch.Tensor:
    """A 1-d tensor of ``values`` in memory from which ``device`` copies without anybody waiting."""
    host = torch.tensor(values, dtype=dtype)
    return host.pin_memory() if torch.device(device).type == "cuda" else host


def empty(batch: Any) -> Any:
    """A batch without requests that lets in as many new ones as ``batch`` does."""
    from sglang.srt.managers.schedule_batch import ScheduleBatch

    return ScheduleBatch(reqs=[], batch_is_full=batch.batch_is_full)


def set_lengths(batch: Any, lengths: Sequence[int]) -> None:
    """Set the four length fields of a batch; ``seq_lens`` int64 ``[batch]``, ``orig_seq_lens`` int32 ``[batch]``."""
    batch.seq_lens_cpu = torch.tensor(lengths, dtype=torch.int64)
    batch.seq_lens = to_device(lengths, torch.int64, batch.device)
    batch.orig_seq_lens = to_device(lengths, torch.int32, batch.device)
    batch.seq_lens_sum = sum(lengths)


def drop_speculation(batch: Any) -> None:
    """Put a batch whose lengths are right already, a prefilled one, into plain form."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    batch.spec_algorithm, batch.spec_info = SpeculativeAlgorithm.NONE, None


def drop_accumulated_penalties(sampling_info: Any) -> None:
    """Leave a batch its penalizers alone.

    ``Scheduler._forward_isolation`` adds them up for each speculative forward, and leaves the sums on the batch.
    Without overlap a plain forward would apply both, the sums for the requests that ran then.
    """
    sampling_info.acc_additive_penalties = sampling_info.acc_scaling_penalties = None


@dataclass(frozen=True, slots=True)
class Reserve:
    """KV slots allocated ahead for draft tokens, behind the page of each request's last committed token."""

    reqs: Sequence[Any]
    slots: torch.Tensor
    """int64, whole pages."""

    @classmethod
    def of(cls, reqs: Sequence[Any], req_to_token: torch.Tensor, page_size: int) -> Reserve:
        starts = [kv.ceil_to_page(v2_compat.committed_len(req), page_size) for req in reqs]
        ends = [
            max(start, kv.ceil_to_page(v2_compat.allocated_len(req), page_size))
            for req, start in zip(reqs, starts, strict=True)
        ]
        rows = [v2_compat.row_index(req) for req in reqs]
        return cls(reqs, kv.gather_slots(req_to_token, rows, starts, ends))

    def give_back(self, allocator: Any) -> int:
        """Free the slots; returns how many."""
        count = self.slots.numel()
        if count:
            v2_compat.free_whole_pages(allocator, self.slots)
        for req in self.reqs:
            v2_compat.set_allocated_len(req, v2_compat.committed_len(req))
        return count


@dataclass(frozen=True, slots=True)
class TokenRanges:
    """Tokens ``starts[i]..ends[i]`` of each request, whose slots are allocated already."""

    reqs: Sequence[Any]
    starts: Sequence[int]
    ends: Sequence[int]

    @property
    def counts(self) -> list[int]:
        return [end - start for start, end in zip(self.starts, self.ends, strict=True)]

    def put_into(self, batch: Any) -> None:
        """Let a batch of these requests extend over the ranges, as ``prepare_for_extend`` makes one."""
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        ids: list[int] = []
        for req, start, end in zip(self.reqs, self.starts, self.ends, strict=True):
            ids += token_range(req, start, end)
        rows = [v2_compat.row_index(req) for req in self.reqs]
        slots = kv.gather_slots(batch.req_to_token_pool.req_to_token, rows, self.starts, self.ends)
        batch.prefill_input_ids_cpu, batch.input_ids = _host(ids, torch.int64, batch.device), None
        batch.out_cache_loc = slots
        batch.prefix_lens, batch.extend_lens = list(self.starts), self.counts
        batch.extend_num_tokens = len(ids)
        batch.forward_mode = ForwardMode.EXTEND


def launch_running_as_extend(batch: Any, ranges: TokenRanges) -> None:
    """Rewrite a running batch as an extend over ``ranges``; nothing of its time as a prefill is left on it."""
    ranges.put_into(batch)
    set_lengths(batch, list(ranges.ends))
    batch.extend_logprob_start_lens = ranges.counts  # no logprobs of tokens that were put out already
    batch.extend_input_logprob_token_ids = torch.empty(0, dtype=torch.int64) if batch.return_logprob else None
    batch.spec_info = batch.chunked_req = batch.prefill_stats = batch.mix_running_indices = None
    v2_compat.reset_if_present(batch, ("chunked_req_next_prompt_token", "mix_running_indices_cpu"))
    batch.is_prefill_only = False


def aside(scheduler: Any, ranges: Sequence[tuple[Any, int, int]]) -> Any:
    """A batch of its own that extends over ``(request, start, end)`` ranges and samples nothing."""
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

    reqs = [req for req, _, _ in ranges]
    batch = ScheduleBatch.init_new(
        reqs,
        scheduler.req_to_token_pool,
        scheduler.token_to_kv_pool_allocator,
        scheduler.tree_cache,
        scheduler.model_config,
        scheduler.enable_overlap,
        scheduler.spec_algorithm,
    )
    batch.return_logprob = batch.has_grammar = batch.return_hidden_states = False
    batch.is_prefill_only = True
    rows = [v2_compat.row_index(req) for req in reqs]
    batch.req_pool_indices = to_device(rows, torch.int64, batch.device)
    batch.req_pool_indices_cpu = torch.tensor(rows, dtype=torch.int64)
    token_ranges = TokenRanges(reqs, [start for _, start, _ in ranges], [end for _, _, end in ranges])
    token_ranges.put_into(batch)
    set_lengths(batch, list(token_ranges.ends))
    batch.extend_logprob_start_lens = token_ranges.counts
    sampling_info = SamplingBatchInfo.from_schedule_batch(batch, scheduler.model_config.vocab_size)
    batch.sampling_info = sampling_info.copy_for_forward()
    return batch


def parts(ranges: Sequence[tuple[Any, int, int]], most: int) -> list[list[tuple[Any, int, int]]]:
    """The ranges of :func:`aside` for forwards of at most ``most`` (2 or more) tokens, one after another.

    A range that is cut goes on at its part's last token, which is shown to the draft without the one that follows.
    """
    made: list[list[tuple[Any, int, int]]] = [[]]
    room = most
    for req, start, end in ranges:
        while start < end - 1:
            if room < 2:
                made.append([])
                room = most
            cut = min(end, start + room)
            made[-1].append((req, start, cut))
            room -= cut - start
            start = cut if cut == end else cut - 1
    return made


def is_all_tokens(batch: Any) -> bool:
    """Whether every position of a prefill is a token id, none an embedding."""
    return batch.input_embeds is None and getattr(batch, "replace_embeds", None) is None


def start_at_gaps(batch: Any, gaps: Sequence[int | None]) -> None:
    """Let a prepared prefill start at the gap in each request's cached prefix.

    Its own slots and the cached ones keep their places, so nothing is allocated.
    """
    starts = [prefix if gap is None else min(gap, prefix) for gap, prefix in zip(gaps, batch.prefix_lens, strict=True)]
    added = [prefix - start for start, prefix in zip(starts, batch.prefix_lens, strict=True)]
    ends = batch.seq_lens_cpu.tolist()
    TokenRanges(batch.reqs, starts, ends).put_into(batch)
    batch.extend_logprob_start_lens = [
        start + more for start, more in zip(batch.extend_logprob_start_lens, added, strict=True)
    ]
    for req, start, end in zip(batch.reqs, starts, ends, strict=True):
        v2_compat.set_extend_end(req, start, end)
