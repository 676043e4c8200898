"""Triton kernels of 0.5.12.post1 in torch: the ones that Triton's interpreter spends its time on.

Arguments are the kernels' own, after the launch grid (for most of them the batch size).
"""

from __future__ import annotations

import torch
from sgl_on_cpu.kv import copy_slots, read_draft_slots, read_rows, write_rows
from torch import Tensor


def alloc_extend_kernel(
    bs: int,
    pre_lens: Tensor,
    seq_lens: Tensor,
    last_loc: Tensor,
    free_pages: Tensor,
    out_indices: Tensor,
    bs_upper: int,
    page_size: int,
) -> None:
    """mem_cache/allocator.py:241: slots for each request's new tokens, on its last page as far as that goes and then
    on free pages.  Where these run out some are left out; the caller looks afterwards."""
    at = pages_taken = 0
    rows = zip(pre_lens[:bs].tolist(), seq_lens[:bs].tolist(), last_loc[:bs].tolist(), strict=True)
    for before, after, last in rows:
        held, needed = -(-before // page_size), -(-after // page_size)
        here = min(after, held * page_size) - before
        pages = free_pages[pages_taken : pages_taken + needed - held]
        on_new_pages = (pages[:, None] * page_size + torch.arange(page_size)).view(-1)
        slots = torch.cat([torch.arange(last + 1, last + 1 + here), on_new_pages])[: after - before]
        out_indices[at : at + slots.numel()] = slots
        at += after - before
        pages_taken += needed - held


def alloc_decode_kernel(
    bs: int,
    seq_lens: Tensor,
    last_loc: Tensor,
    free_pages: Tensor,
    out_indices: Tensor,
    bs_upper: int,
    page_size: int,
) -> None:
    """mem_cache/allocator.py:327: the slot behind each request's last, or the first of a free page.  Where these run
    out some are left out; the caller looks afterwards."""
    out_indices[:bs] = last_loc[:bs] + 1
    on_new_pages = ((seq_lens[:bs] - 1) % page_size == 0).nonzero().view(-1)
    pages = free_pages[: on_new_pages.numel()]
    out_indices[on_new_pages[: pages.numel()]] = pages * page_size


def copy_all_layer_kv_cache_tiled(
    buffers: int,
    tiles: int,
    data_ptrs: Tensor,
    strides: Tensor,
    tgt_loc: Tensor,
    src_loc: Tensor,
    num_locs: int,
    num_locs_upper: int,
    **launch: int,
) -> None:
    """mem_cache/memory_pool.py:2225: see :func:`sgl_on_cpu.kv.copy_slots`."""
    copy_slots(data_ptrs[:buffers], strides[:buffers], tgt_loc[:num_locs], src_loc[:num_locs])


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


def assign_draft_cache_locs(
    bs: int,
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    extend_lens: Tensor,
    num_new_pages_per_topk: Tensor,
    out_cache_loc: Tensor,
    source_cache_loc: Tensor | None,
    target_cache_loc: Tensor | None,
    last_page_lens_cumsum: Tensor | None,
    duplicate_cache_len: int,
    pool_len: int,
    topk: int,
    speculative_num_steps: int,
    page_size: int,
    bs_upper: int,
    iter_upper: int,
) -> None:
    """speculative/spec_utils.py:149: the slots of all branches go behind each sequence."""
    if page_size > 1 and topk > 1:
        raise NotImplementedError("draft branches that copy their last page have no CPU version")
    start = seq_lens[:bs]
    write_rows(req_pool_indices[:bs], req_to_token, start, start + topk * speculative_num_steps, out_cache_loc)


def align_evict_mask_to_page_size(
    bs: int, seq_lens: Tensor, evict_mask: Tensor, page_size: int, num_draft_tokens: int, block_size: int
) -> None:
    """speculative/spec_utils.py:340: what is rejected on the page of the last accepted token is not evicted."""
    rows = evict_mask.view(-1, num_draft_tokens)[:bs]
    accepted = num_draft_tokens - rows.sum(1)
    for row, length, kept in zip(rows, seq_lens[:bs].tolist(), accepted.tolist(), strict=True):
        start = (length + kept - 1) // page_size * page_size - length
        row[max(start, 0) : start + page_size] = False


def fill_bonus_tokens(
    bs: int, accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, num_draft_tokens: int
) -> None:
    """speculative/eagle_info_v2.py:491: each request's last accepted token."""
    last = torch.arange(bs) * num_draft_tokens + accept_lens[:bs] - 1
    bonus_tokens[:bs] = accept_tokens.reshape(-1)[last]


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
