"""Where SGLang 0.5.13 to 0.5.23 spell the same thing differently: one small function for each.

Every function looks at what the object at hand offers, never at a version, so that a release between two that were
read falls on the right side by itself.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from specswitch.engine.hooks import InstanceHooks


def resolved(server_args: Any) -> Any:
    """The server arguments as SGLang has resolved them.

    Since 0.5.15 a ``ServerArgs`` keeps what resolution decided beside the values that were given, and
    ``resolved_view`` lays the one over the other.
    """
    if not hasattr(server_args, "_resolved_overrides"):
        return server_args
    for module in ("model_override_base", "overrides"):  # the first since 0.5.19
        with suppress(ImportError, AttributeError):
            return importlib.import_module(f"sglang.srt.arg_groups.{module}").resolved_view(server_args)
    return server_args


def committed_len(req: Any) -> int:
    """Tokens of ``req`` whose KV is written (``Req.kv_committed_len`` up to 0.5.18, then ``ReqKvInfo``'s)."""
    length: int = _owner(req, "kv_committed_len").kv_committed_len
    return length


def set_committed_len(req: Any, length: int) -> None:
    _owner(req, "kv_committed_len").kv_committed_len = length


def allocated_len(req: Any) -> int:
    """KV slots that ``req`` holds (``Req.kv_allocated_len`` up to 0.5.15, then ``ReqKvInfo``'s)."""
    length: int = _owner(req, "kv_allocated_len").kv_allocated_len
    return length


def set_allocated_len(req: Any, length: int) -> None:
    _owner(req, "kv_allocated_len").kv_allocated_len = length


def row_index(req: Any) -> int:
    """The row of ``req`` in ``req_to_token`` (``Req.req_pool_idx`` up to 0.5.18, then ``ReqKvInfo``'s)."""
    row: int = _owner(req, "req_pool_idx").req_pool_idx
    return row


def set_row_index(req: Any, row: int) -> None:
    _owner(req, "req_pool_idx").req_pool_idx = row


def protected_len(req: Any) -> int:
    """How many leading slots of ``req`` belong to the prefix cache."""
    length: int = _owner(req, "cache_protected_len").cache_protected_len
    return length


def _owner(req: Any, name: str) -> Any:
    record = getattr(req, "kv", None)
    return record if hasattr(record, name) else req


def free_whole_pages(allocator: Any, slots: torch.Tensor) -> None:
    """Give back slots that make up whole pages, each page's slots in order.

    ``free_segment`` (0.5.17 and later) does it without looking for duplicates, which on a GPU is a
    synchronisation.
    """
    if hasattr(allocator, "free_segment"):
        allocator.free_segment(slots, start_pos=0)
    else:
        allocator.free(slots)


def set_extend_end(req: Any, start: int, end: int) -> None:
    """Say that the next extend of ``req`` covers its tokens ``start..end``."""
    refresh = getattr(req, "refresh_fill_ids", None) or getattr(req, "_refresh_fill_ids", None)
    if refresh is not None:
        refresh()
    else:  # 0.5.13
        req.full_untruncated_fill_ids = req.origin_input_ids + req.output_ids
    if hasattr(req, "set_extend_range"):  # 0.5.15 to 0.5.21
        req.set_extend_range(start, end)
    elif hasattr(req, "extend_end"):
        req.extend_end = end
    else:
        req.fill_len = end
        req.set_extend_input_len(end - start)


def extend_end(req: Any) -> int:
    """How many leading tokens of ``req`` its last extend had covered when it was done."""
    if hasattr(req, "extend_range"):
        end: int = req.extend_range.end
        return end
    return int(req.extend_end if hasattr(req, "extend_end") else req.fill_len)


def processor_counts_the_tail() -> bool:
    """Whether processing an extend's result adds the pending token of ``decoding_reqs`` to their committed KV.

    ``SchedulerBatchResultProcessor.process_batch_result_prefill`` does since 0.5.19, the release that brought
    ``ScheduleBatch.convert_decode_to_extend``.
    """
    from sglang.srt.managers.schedule_batch import ScheduleBatch

    return hasattr(ScheduleBatch, "convert_decode_to_extend")


def set_running_batch(scheduler: Any, plan: Any, batch: Any) -> None:
    """Make ``batch`` the running one after ``get_next_batch_to_run`` returned ``plan``.

    That is a ``NextBatchPlan`` since 0.5.16; before, it is the batch to launch, and the method sets
    ``Scheduler.running_batch`` itself.
    """
    if hasattr(plan, "running_batch"):
        plan.running_batch = batch
    else:
        scheduler.running_batch = batch


def batch_to_run(plan: Any) -> Any:
    """The batch that ``get_next_batch_to_run`` wants launched, or None."""
    return plan.batch_to_run if hasattr(plan, "batch_to_run") else plan


def hook_internal_state(hooks: InstanceHooks, scheduler: Any, wrapper: Callable[..., Any]) -> None:
    """Hook ``Scheduler.get_internal_state``, for callers of the method and for the request dispatcher, which holds
    the bound method it was built with."""
    from sglang.srt.managers.io_struct import GetInternalStateReq

    hooks.around(scheduler, "get_internal_state", wrapper)
    hooks.replace_item(scheduler._request_dispatcher._mapping, GetInternalStateReq, scheduler.get_internal_state)


def hook_prefix_inserts(
    hooks: InstanceHooks, tree_cache: Any, before: Callable[[Any, int], None], after: Callable[[Any, int], None]
) -> None:
    """Call ``before(req, length)`` whenever the first ``length`` slots of a request go into the prefix cache, and
    ``after`` when they have, in case the request goes on.

    ``BasePrefixCache.checkpoint`` since 0.5.22; before, ``cache_unfinished_req`` and for a finished request
    ``insert_req`` (0.5.21) or ``cache_finished_req``.
    """
    for name, wrapper in (
        ("checkpoint", functools.partial(_around_insert, before, after)),
        ("insert_req", functools.partial(_around_insert, before, None)),
        ("cache_finished_req", functools.partial(_around_cache_finished, before)),
        ("cache_unfinished_req", functools.partial(_around_cache_unfinished, before, after)),
    ):
        if hasattr(tree_cache, name):
            hooks.around(tree_cache, name, wrapper)


def _around_insert(
    before: Callable[[Any, int], None],
    after: Callable[[Any, int], None] | None,
    original: Callable[..., Any],
    req: Any,
    *,
    up_to: int,
    **kwargs: Any,
) -> Any:
    before(req, up_to)
    result = original(req, up_to=up_to, **kwargs)
    if after is not None:
        after(req, up_to)
    return result


def _around_cache_finished(
    before: Callable[[Any, int], None], original: Callable[..., Any], req: Any, is_insert: bool = True, **kwargs: Any
) -> Any:
    if is_insert:
        before(req, kwargs.get("kv_len_to_handle") or committed_len(req))
    return original(req, is_insert=is_insert, **kwargs)


def _around_cache_unfinished(
    before: Callable[[Any, int], None],
    after: Callable[[Any, int], None],
    original: Callable[..., Any],
    req: Any,
    **kwargs: Any,
) -> Any:
    length = extend_end(req)
    before(req, length)
    result = original(req, **kwargs)
    after(req, length)
    return result


def stash_tokens(future_map: Any, rows: torch.Tensor, payload: Any) -> None:
    """What ``FutureMap.stash`` does on a server without speculation: relay token ids alone.

    ``payload`` is their tensor up to 0.5.14; ``rows`` int64 ``[batch size]``.
    """
    tokens: torch.Tensor = payload if isinstance(payload, torch.Tensor) else payload.bonus_tokens
    buffer = future_map.output_tokens_buf
    buffer[rows] = tokens.to(buffer.dtype)


def reset_if_present(batch: Any, names: Sequence[str]) -> None:
    """Set those fields of a ``ScheduleBatch`` to None which this release has."""
    for name in names:
        if hasattr(batch, name):
            setattr(batch, name, None)
