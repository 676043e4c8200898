"""``sgl_kernel.speculative`` as 0.5.12.post1 calls it."""

from __future__ import annotations

from sgl_on_cpu import kernels
from sgl_on_cpu.kernels import reconstruct_indices_from_tree_mask, verify_tree_greedy
from torch import Tensor

__all__ = ["build_tree_kernel_efficient", "reconstruct_indices_from_tree_mask", "verify_tree_greedy"]


def build_tree_kernel_efficient(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """See :func:`sgl_on_cpu.kernels.build_tree`; called by eagle_utils.build_tree_kernel_efficient."""
    kernels.build_tree(
        parent_list,
        selected_index,
        verified_seq_len,
        tree_mask,
        positions,
        retrive_index,
        retrive_next_token,
        retrive_next_sibling,
        topk,
        draft_token_num,
        int(tree_mask_mode),
    )
