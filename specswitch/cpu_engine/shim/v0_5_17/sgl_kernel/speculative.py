"""Bookkeeping of draft trees and accepted tokens, as 0.5.17 to 0.5.23 call it."""

from __future__ import annotations

import torch
from sgl_on_cpu import kernels
from sgl_on_cpu.kernels import reconstruct_indices_from_tree_mask
from sgl_on_cpu.kernels import verify_tree_greedy as verify_tree_greedy_cpu
from torch import Tensor

__all__ = [
    "build_tree_kernel_efficient_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "reconstruct_indices_from_tree_mask",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    seq_lens: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    topk: int,
    depth: int,
    num_verify_tokens: int,
    tree_mask_mode: int,
) -> None:
    """See :func:`sgl_on_cpu.kernels.build_tree`; called by sglang.kernels.ops.speculative.spec_tree."""
    kernels.build_tree(
        parent_list,
        selected_index,
        seq_lens,
        tree_mask,
        positions,
        retrieve_index,
        retrieve_next_token,
        retrieve_next_sibling,
        topk,
        num_verify_tokens,
        int(tree_mask_mode),
    )


def fill_bonus_tokens_cpu(accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int) -> None:
    """Each request's last accepted token: ``accept_tokens`` bs * stride, ``accept_lens`` bs (bonus included)."""
    last = torch.arange(accept_lens.shape[0]) * accept_stride + accept_lens.long() - 1
    bonus_tokens.copy_(accept_tokens.reshape(-1)[last])


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor) -> None:
    """Pack the slots of the accepted tokens to the front; ``accept_index`` holds -1 where nothing was accepted."""
    accepted = accept_index.reshape(-1)
    accepted = accepted[accepted > -1].long()
    accept_out_cache_loc[: accepted.numel()] = out_cache_loc[accepted].to(accept_out_cache_loc.dtype)


def rotate_input_ids_cpu(
    input_ids: Tensor, start_loc: Tensor, seq_lens: Tensor, topk_index: Tensor, select_index: Tensor | None = None
) -> None:
    """Shift each request's tokens one to the left and put its new token last (or where ``select_index`` says)."""
    new_tokens = topk_index.reshape(-1)
    for i, (start, length) in enumerate(zip(start_loc.tolist(), seq_lens.tolist(), strict=True)):
        if length <= 0:
            continue
        input_ids[start : start + length - 1] = input_ids[start + 1 : start + length].clone()
        input_ids[start + length - 1 if select_index is None else int(select_index[i])] = new_tokens[i]
