"""Seven Triton kernels of 0.5.12.post1 in torch: the ones that Triton's interpreter spends a speculative turn on.

Arguments are the kernels' own, after the launch grid (for most of them the batch size).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from sgl_on_cpu.kv import read_draft_slots, read_rows, write_rows
from torch import Tensor


class InsteadOfTriton:
    """Launched as a Triton kernel is, ``kernel[(programs,)](...)``; ``original`` is the one it stands for."""

    def __init__(self, function: Callable[..., None], original: Any) -> None:
        self._function = function
        self.original = original

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self._function, *grid)


def assign_req_to_token_pool(
    bs: int,
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    bs_upper: int,
) -> None:
    """speculative/spec_utils.py:95: see :func:`sgl_on_cpu.kv.write_rows`."""
    write_rows(req_pool_indices[:bs], req_to_token, start_offset[:bs], end_offset[:bs], out_cache_loc)


def assign_extend_cache_locs(
    bs: int,
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    bs_upper: int,
) -> None:
    """speculative/eagle_info_v2.py:527: see :func:`sgl_on_cpu.kv.read_rows`."""
    read_rows(req_pool_indices[:bs], req_to_token, start_offset[:bs], end_offset[:bs], out_cache_loc)


def assign_draft_cache_locs_page_size_1(
    bs: int,
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    speculative_num_steps: int,
) -> None:
    """speculative/eagle_info_v2.py:61: see :func:`sgl_on_cpu.kv.read_draft_slots`."""
    width = topk * speculative_num_steps
    read_draft_slots(req_pool_indices[:bs], req_to_token, seq_lens[:bs], out_cache_loc, width)


def create_flashinfer_kv_indices_triton(
    bs: int,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    page_kernel_lens: Tensor,
    kv_indptr: Tensor,
    kv_start_idx: Tensor | None,
    kv_indices: Tensor,
    req_to_token_stride: int,
) -> None:
    """layers/attention/utils.py:19: each request's slots to ``kv_indices`` from ``kv_indptr`` on."""
    starts = [0] * bs if kv_start_idx is None else kv_start_idx[:bs].tolist()
    rows = zip(
        req_pool_indices[:bs].tolist(), starts, page_kernel_lens[:bs].tolist(), kv_indptr[:bs].tolist(), strict=True
    )
    for row, start, length, at in rows:
        kv_indices[at : at + length] = req_to_token[row, start : start + length].to(kv_indices.dtype)


def compute_position_kernel(
    bs: int,
    positions: Tensor,
    extend_start_loc: Tensor,
    extend_prefix_lens: Tensor,
    extend_seq_lens: Tensor,
    has_prefix: bool,
) -> None:
    """model_executor/forward_batch_info.py:1168: positions of an extend batch's tokens, and where each begins."""
    at = 0
    prefixes = extend_prefix_lens[:bs].tolist() if has_prefix else [0] * bs
    for i, (prefix, length) in enumerate(zip(prefixes, extend_seq_lens[:bs].tolist(), strict=True)):
        positions[at : at + length] = torch.arange(prefix, prefix + length)
        extend_start_loc[i] = at
        at += length


def create_extend_after_decode_spec_info(
    bs: int,
    accept_tokens: Tensor,
    seq_lens: Tensor,
    accept_lens: Tensor,
    positions: Tensor,
    bonus_tokens: Tensor,
    bs_upper: int,
) -> None:
    """speculative/spec_utils.py:68: positions of the accepted tokens, and each request's last one."""
    at = 0
    for i, (length, accepted) in enumerate(zip(seq_lens[:bs].tolist(), accept_lens[:bs].tolist(), strict=True)):
        positions[at : at + accepted] = torch.arange(length - accepted, length)
        at += accepted
        bonus_tokens[i] = accept_tokens[at - 1]


def generate_draft_decode_kv_indices(
    num_steps: int,
    num_seqs: int,
    topk: int,
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    paged_kernel_lens: Tensor,
    kv_indices: Tensor,
    kv_indptr: Tensor,
    positions: Tensor,
    pool_len: int,
    kv_indices_stride: int,
    kv_indptr_stride: int,
    bs_upper: int,
    iter_upper: int,
    num_tokens_upper: int,
    page_size: int,
) -> None:
    """speculative/spec_utils.py: at each draft step every branch of every request sees the request's prefix and the
    branch's own tokens so far.  Outputs: ``kv_indices`` and ``kv_indptr``, steps x enough."""
    if page_size > 1 and topk > 1:
        raise NotImplementedError("draft branches that copy their last page have no CPU version")
    rows, lengths = req_to_token[req_pool_indices[:num_seqs].long()], paged_kernel_lens[:num_seqs].tolist()
    seen = positions[: num_seqs * topk].cumsum(0)
    for step in range(num_steps):
        drafted = step + 1
        pieces = []
        for row, length in zip(rows, lengths, strict=True):
            for branch in range(topk):
                start = length + branch * num_steps
                pieces += [row[:length], row[start : start + drafted]]
        flat = torch.cat(pieces)
        kv_indices[step, : flat.numel()] = flat
        kv_indptr[step, 1 : num_seqs * topk + 1] = seen + drafted * torch.arange(1, num_seqs * topk + 1)
