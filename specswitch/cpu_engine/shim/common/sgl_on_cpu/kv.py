"""KV slots: moving between rows of ``req_to_token`` (requests x positions) and flat lists of slots.

``req_pool_indices`` bs names the rows; ``start``, ``end``, ``seq_lens`` bs are positions in them.  Unlike the
kernels, a row that is too narrow or a list that is too short raises, instead of touching other memory.
"""

from __future__ import annotations

import ctypes

from torch import Tensor


def write_rows(
    req_pool_indices: Tensor, req_to_token: Tensor, start: Tensor, end: Tensor, out_cache_loc: Tensor
) -> None:
    """Write the slots ``out_cache_loc`` into each row's [start, end), one request after the other."""
    at = 0
    for row, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True):
        req_to_token[row, first:last] = out_cache_loc[at : at + last - first].to(req_to_token.dtype)
        at += last - first


def read_rows(
    req_pool_indices: Tensor, req_to_token: Tensor, start: Tensor, end: Tensor, out_cache_loc: Tensor
) -> None:
    """Read each row's [start, end) into ``out_cache_loc``, one request after the other."""
    at = 0
    for row, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True):
        out_cache_loc[at : at + last - first] = req_to_token[row, first:last].to(out_cache_loc.dtype)
        at += last - first


def read_draft_slots(
    req_pool_indices: Tensor, req_to_token: Tensor, seq_lens: Tensor, out_cache_loc: Tensor, width: int
) -> None:
    """Read the ``width`` slots behind each sequence into ``out_cache_loc``, one request after the other."""
    read_rows(req_pool_indices, req_to_token, seq_lens, seq_lens + width, out_cache_loc)


def copy_slots(data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    """Copy slots within every buffer of a KV pool; ``data_ptrs`` are addresses, ``strides`` bytes per slot."""
    targets, sources = tgt_loc.tolist(), src_loc.tolist()
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        # all are read before the first is written: targets and sources may overlap
        slots = [ctypes.string_at(address + source * stride, stride) for source in sources]
        for target, slot in zip(targets, slots, strict=True):
            ctypes.memmove(address + target * stride, slot, stride)
