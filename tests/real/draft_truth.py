"""What the draft's KV cache really holds, told by computing it afresh.

The truth about a request is found by running the draft's prefill over its tokens again, in place, comparing what is
written with what was there, and putting everything back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from specswitch.engine import v2_compat
from specswitch.engine.draft_gap import gap_of
from specswitch.engine.hooks import InstanceHooks
from specswitch.engine.look import is_left_out

_TOLERANCE = 2e-3
_UNWRITTEN = 54321.0
"""Put where a plain step leaves the draft's keys as a former request left them."""


def draft_runner(scheduler: Any) -> Any:
    """The draft model's runner, v1 or v2."""
    worker = scheduler.draft_worker
    return worker.draft_worker.draft_runner if hasattr(worker, "draft_worker") else worker.model_runner


def draft_pool(scheduler: Any) -> Any:
    """The draft model's KV pool."""
    return draft_runner(scheduler).token_to_kv_pool


def rows_of(pool: Any, slots: torch.Tensor) -> torch.Tensor:
    """Keys and values of all layers, one row per slot."""
    return torch.cat([buffer[slots].reshape(len(slots), -1).clone() for buffer in pool.k_buffer + pool.v_buffer], 1)


def really_seen(server: Any, req: Any, length: int) -> list[bool]:
    """For each of the first ``length`` tokens of ``req``: whether its draft KV is what a prefill would write."""
    pool, slots = draft_pool(server.scheduler), slots_of(server.scheduler, req, length)
    before = rows_of(pool, slots)
    with _written_again(server, req, length):
        fresh = rows_of(pool, slots)
    return [bool(error <= _TOLERANCE) for error in (fresh - before).abs().amax(1)]


def check_kept(server: Any, req: Any, length: int) -> int:
    """Compare what is kept of the target's hidden states for the first ``length`` tokens with computing them afresh.

    Returns:
        how many are kept.
    """
    kept = server.scheduler.specswitch.engine._alone.kept
    slots = slots_of(server.scheduler, req, length)
    flags = torch.tensor(kept.leading(slots, [1] * length), dtype=torch.bool)
    if not flags.any():
        return 0
    seen: list[torch.Tensor] = []

    def forward(original: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        seen.append(result.logits_output.hidden_states.clone())
        return result

    hooks = InstanceHooks()
    hooks.around(server.scheduler.tp_worker, "forward_batch_generation", forward)
    try:
        with _written_again(server, req, length):
            fresh = torch.cat(seen)
    finally:
        hooks.remove_all()
    wrong = ((kept.of(slots[flags]) - fresh[flags]).abs().amax(1) > _TOLERANCE).nonzero().flatten().tolist()
    assert not wrong, f"{req.rid}: of {int(flags.sum())} hidden states that are kept, {wrong} are those of other tokens"
    return int(flags.sum())


def slots_of(scheduler: Any, req: Any, length: int) -> torch.Tensor:
    """int64 ``[length]``: the slots of a request's first tokens."""
    slots: torch.Tensor = scheduler.req_to_token_pool.req_to_token[v2_compat.row_index(req), :length].long()
    return slots


@contextmanager
def _written_again(server: Any, req: Any, length: int) -> Iterator[None]:
    """In here target and draft have run again over the first tokens of ``req``; afterwards all is as it was."""
    scheduler = server.scheduler
    pools = [scheduler.tp_worker.model_runner.token_to_kv_pool, draft_pool(scheduler)]
    kept = [[buffer.clone() for buffer in pool.k_buffer + pool.v_buffer] for pool in pools]
    with torch.inference_mode():
        scheduler.specswitch.engine.write_draft_kv([(req, 0, length)])
    yield
    for pool, buffers in zip(pools, kept, strict=True):
        for buffer, old in zip(pool.k_buffer + pool.v_buffer, buffers, strict=True):
            buffer.copy_(old)


class GapChecker:
    """Compares every running request's tracked gap with the truth."""

    def __init__(self, server: Any, prompts: Mapping[str, Sequence[int]]) -> None:
        self._server = server
        self._prompts = prompts
        self._left_out: set[tuple[int, ...]] = set()
        self._verified: set[tuple[int, ...]] = set()
        """Up to these tokens, requests were verified that a look had left out: their gaps stay open all the same."""
        self._finished: set[str] = set()
        self.seen = 0
        """Tokens found to be seen, as tracked."""
        self.unseen = 0

    def after_turn(self) -> None:
        """Call after every turn.

        Left out, also where a later request reuses them, are tokens that SGLang itself does not show the draft as a
        prefill would: the end of a chunk, where it shows what the target sampled there instead of the prompt's next
        token, and what the last verify step of a request accepted, which it does not show the draft any more.
        """
        scheduler = self._server.scheduler
        if scheduler.chunked_req is not None:
            self._left_out.add(tuple(_extended_so_far(scheduler.chunked_req)))
        last = scheduler.last_batch
        if last is not None and last.forward_mode.is_decode() and last.spec_algorithm.is_none():
            for keys in draft_pool(scheduler).k_buffer:
                keys[last.out_cache_loc] = _UNWRITTEN
        for req in filter(is_left_out, scheduler.running_batch.reqs):
            tokens = [*req.origin_input_ids, *req.output_ids]
            for more in range(scheduler.server_args.speculative_num_draft_tokens + 2):
                self._verified.add(tuple(tokens[: len(tokens) - more]))
        for rid, output in self._server.outputs().items():
            if output.finished and rid not in self._finished and rid in self._prompts:
                self._finished.add(rid)
                tokens = [*self._prompts[rid], *output.output_ids]
                for back in range(scheduler.server_args.speculative_num_draft_tokens + 2):
                    self._left_out.add(tuple(tokens[: len(tokens) - back]))

    def check(self) -> None:
        for req in self._server.scheduler.running_batch.reqs:
            if not req.finished() and req.output_ids:
                self._check(req)

    def _check(self, req: Any) -> None:
        tokens = list(req.origin_input_ids) + list(req.output_ids)
        # the draft is shown a token together with the next one, which the last token does not have yet
        length = min(v2_compat.committed_len(req), len(tokens) - 1)
        gap = gap_of(req)
        tracked = length if gap is None else gap
        for index, is_seen in enumerate(really_seen(self._server, req, length)[: length - 1]):
            if tuple(tokens[: index + 1]) in self._left_out:
                continue
            if index < tracked - 1:
                assert is_seen, f"{req.rid}: token {index} counts as seen ({gap=}, {length} tokens), but is not"
                self.seen += 1
            elif index > tracked and tuple(tokens[: index + 1]) not in self._verified:
                # at the gap itself, what a split catch-up ended with may stand
                assert not is_seen, f"{req.rid}: token {index} counts as unseen ({gap=}), but was written"
                self.unseen += 1


def _extended_so_far(req: Any) -> list[int]:
    if hasattr(req, "fill_ids"):
        return list(req.fill_ids)
    return list(req.full_untruncated_fill_ids[: v2_compat.extend_end(req)])
