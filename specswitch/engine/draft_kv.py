"""Write the draft's KV for tokens it has not seen, on SGLang 0.5.11-0.5.12.

Every way is an extend through the speculative worker's own ``forward_batch_generation``: the target runs again over
the tokens (their slots get the same keys and values), and its hidden states feed the draft's prefill.

- *Catch-up*: the running batch itself becomes an extend over what each request misses; one token comes out, as from
  a plain decode step.
- *Aside*: when that would take too long, an extend over some of the missing tokens runs beside the running batch,
  between its plain steps, and what it samples is dropped.
- *Prefix*: a request that reuses a cached prefix with a gap starts its prefill at the gap.

Relies on ``managers/schedule_batch.py`` ``ScheduleBatch.init_new``, ``prepare_for_extend`` (the fields set there).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

from specswitch.engine import kv
from specswitch.engine.draft_gap import gap_of
from specswitch.engine.look import is_left_out

_ALWAYS_WORTH = 64
"""Missing tokens up to which a catch-up is not weighed against what is left to generate."""
_LEAST_TO_SHOW = 32
"""Tokens that a request of a sample has to generate yet."""


@dataclass(frozen=True)
class Extend:
    """An extend over tokens whose slots are allocated already, one range per request of a batch."""

    starts: list[int]
    ends: list[int]
    input_ids: torch.Tensor
    """int64 ``[tokens]``."""
    out_cache_loc: torch.Tensor
    """int64 ``[tokens]``: the slots the tokens occupy."""

    @property
    def lengths(self) -> list[int]:
        return [end - start for start, end in zip(self.starts, self.ends, strict=True)]

    @property
    def tokens(self) -> int:
        return len(self.input_ids)

    @classmethod
    def over(cls, batch: Any, starts: Sequence[int], ends: Sequence[int]) -> Extend:
        """Tokens ``starts[i]..ends[i]`` of the batch's ``i``-th request."""
        ids: list[int] = []
        for req, start, end in zip(batch.reqs, starts, ends, strict=True):
            ids += _tokens(req, start, end)
        rows = [req.req_pool_idx for req in batch.reqs]
        return cls(
            starts=list(starts),
            ends=list(ends),
            input_ids=torch.tensor(ids, dtype=torch.int64).to(batch.device),
            out_cache_loc=kv.gather_slots(batch.req_to_token_pool.req_to_token, rows, starts, ends),
        )

    def put_into(self, batch: Any) -> None:
        """Turn the batch into this extend; its sequence lengths are the ends already."""
        batch.forward_mode = ForwardMode.EXTEND
        batch.input_ids, batch.out_cache_loc = self.input_ids, self.out_cache_loc
        batch.prefix_lens, batch.extend_lens = list(self.starts), self.lengths
        batch.extend_num_tokens = self.tokens


def missing_tokens(req: Any) -> int:
    """Tokens of a running request in plain form that the draft has not seen, the last one put out included."""
    gap = gap_of(req)
    total = len(req.origin_input_ids) + len(req.output_ids)
    return 1 if gap is None else max(1, total - gap)


def is_worth(req: Any) -> bool:
    """Whether catching up pays: not when many tokens are missing and few are left to generate.

    A missing token costs about as much as half a generated one gains, so a request with less than half as many
    tokens to go as are missing speculates with the gap left open.  So do those that a look leaves out, as long as it
    lasts.
    """
    if is_left_out(req):
        return False
    missing = missing_tokens(req)
    return missing <= _ALWAYS_WORTH or 2 * (req.sampling_params.max_new_tokens - len(req.output_ids)) >= missing


def can_show(req: Any) -> bool:
    """Whether a request can be brought back, and has enough to generate yet to show how well the draft guesses."""
    return req.sampling_params.max_new_tokens - len(req.output_ids) >= _LEAST_TO_SHOW and is_worth(req)


def missing_of_worthy(reqs: Sequence[Any]) -> int:
    """Missing tokens of the running requests that are worth catching up."""
    return sum(missing_tokens(req) for req in reqs if not req.finished() and is_worth(req))


def ranges_beside(reqs: Sequence[Any], room: int) -> list[tuple[Any, int, int]]:
    """``(request, start, end)`` ranges of at most ``room`` missing tokens in all, the longest gaps first.

    A range ends before a request's last known token at the latest, whose KV may still be in flight.
    """
    ranges = []
    for req in sorted(reqs, key=missing_tokens, reverse=True):
        start, end = gap_of(req), len(req.origin_input_ids) + len(req.output_ids) - 1
        if start is None or req.finished() or not is_worth(req) or min(end - start, room) < 2:
            continue
        end = min(end, start + room)
        ranges.append((req, start, end))
        room -= end - start
    return ranges


def catch_up_ranges(batch: Any) -> list[tuple[Any, int, int]]:
    """What the catch-up of a batch covers that was just prepared for a plain decode step, no result in flight.

    Each request's ``seq_lens_cpu`` then counts its tokens up to and including the last one put out.
    """
    ranges = []
    for req, end in zip(batch.reqs, batch.seq_lens_cpu.tolist(), strict=True):
        gap = gap_of(req)
        ranges.append((req, end - 1 if gap is None or not is_worth(req) else min(gap, end - 1), end))
    return ranges


def turn_into_catch_up(batch: Any, extend: Extend) -> None:
    """Rewrite the running batch."""
    extend.put_into(batch)
    batch.extend_logprob_start_lens = extend.lengths  # no logprobs of tokens already put out
    batch.extend_input_logprob_token_ids = None
    batch.decoding_reqs = None
    batch.spec_info = None


def aside_batch(scheduler: Any, ranges: Sequence[tuple[Any, int, int]]) -> ScheduleBatch:
    """A batch of its own that extends over ``(request, start, end)`` ranges; what it samples is to be dropped."""
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
    ends = [end for _, _, end in ranges]
    batch.seq_lens_cpu = torch.tensor(ends, dtype=torch.int64)
    batch.seq_lens = batch.seq_lens_cpu.to(batch.device, copy=True)
    batch.orig_seq_lens = batch.seq_lens.to(torch.int32)
    batch.seq_lens_sum = sum(ends)
    batch.req_pool_indices = torch.tensor([req.req_pool_idx for req in reqs], dtype=torch.int64).to(batch.device)
    extend = Extend.over(batch, [start for _, start, _ in ranges], ends)
    extend.put_into(batch)
    batch.extend_logprob_start_lens = extend.lengths
    batch.sampling_info = SamplingBatchInfo.from_schedule_batch(batch, scheduler.model_config.vocab_size)
    batch.sampling_info.is_all_greedy = True
    return batch


def start_at_gaps(batch: Any, gaps: Sequence[int | None]) -> int:
    """Let a prepared prefill start at the gap in each request's cached prefix; returns the tokens added.

    Its own slots and the cached ones keep their places, so nothing is allocated.
    """
    starts = [prefix if gap is None else min(gap, prefix) for gap, prefix in zip(gaps, batch.prefix_lens, strict=True)]
    added = [prefix - start for start, prefix in zip(starts, batch.prefix_lens, strict=True)]
    if not any(added):
        return 0
    Extend.over(batch, starts, batch.seq_lens_cpu.tolist()).put_into(batch)
    batch.extend_logprob_start_lens = [
        start + more for start, more in zip(batch.extend_logprob_start_lens, added, strict=True)
    ]
    return sum(added)


def _tokens(req: Any, start: int, end: int) -> list[int]:
    """Tokens ``start..end`` of prompt and output together, without joining the two in full."""
    prompt = req.origin_input_ids
    split = len(prompt)
    if start >= split:
        return list(req.output_ids[start - split : end - split])
    return list(prompt[start:end]) + list(req.output_ids[: max(0, end - split)])
