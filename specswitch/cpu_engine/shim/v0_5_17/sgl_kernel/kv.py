"""KV slots and the pool's buffers, as 0.5.17 to 0.5.23 call them; shapes as in :mod:`sgl_on_cpu.kv`."""

from __future__ import annotations

import torch
from sgl_on_cpu.kv import copy_slots, read_draft_slots, read_rows, write_rows
from torch import Tensor


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, start: Tensor, end: Tensor, out_cache_loc: Tensor, pool_len: int
) -> None:
    """See :func:`sgl_on_cpu.kv.write_rows`."""
    write_rows(req_pool_indices, req_to_token, start, end, out_cache_loc)


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, start: Tensor, end: Tensor, out_cache_loc: Tensor, pool_len: int
) -> None:
    """See :func:`sgl_on_cpu.kv.read_rows`."""
    read_rows(req_pool_indices, req_to_token, start, end, out_cache_loc)


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """See :func:`sgl_on_cpu.kv.read_draft_slots`."""
    read_draft_slots(req_pool_indices, req_to_token, seq_lens, out_cache_loc, topk * num_steps)


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor, req_pool_indices: Tensor, seq_lens: Tensor, topk: int, num_steps: int, pool_len: int
) -> Tensor:
    """One row of slots per request and beam, (bs * topk) x pool_len: the sequence, then the beam's own draft slots."""
    rows = torch.zeros((seq_lens.shape[0] * topk, pool_len), dtype=req_to_token.dtype)
    for i, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        for beam in range(topk):
            first = length + beam * num_steps
            rows[i * topk + beam, :length] = req_to_token[row, :length]
            rows[i * topk + beam, length : length + num_steps] = req_to_token[row, first : first + num_steps]
    return rows


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    """See :func:`sgl_on_cpu.kv.copy_slots`."""
    copy_slots(data_ptrs, strides, tgt_loc, src_loc)
