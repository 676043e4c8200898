"""Stand-in for the CUDA package sgl_kernel, with what SGLang 0.5.12.post1's speculative workers call.

Names, argument orders and in-place outputs are those of the call sites in sglang.srt.speculative
(eagle_utils.py, eagle_info.py, eagle_info_v2.py, ngram_worker.py, spec_utils.py).  Any other name imports and
raises ``NotImplementedError`` when called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import torch
from torch import Tensor

from .sampling import top_k_renorm_prob, top_p_renorm_prob, tree_speculative_sampling_target_only
from .speculative import build_tree_kernel_efficient, reconstruct_indices_from_tree_mask, verify_tree_greedy

__all__ = [
    "build_tree_kernel_efficient",
    "fast_topk",
    "reconstruct_indices_from_tree_mask",
    "top_k_renorm_prob",
    "top_p_renorm_prob",
    "tree_speculative_sampling_target_only",
    "verify_tree_greedy",
]
__version__ = "0.0.0+cpu"


def fast_topk(values: Tensor, topk: int, dim: int) -> tuple[Tensor, Tensor]:
    """Values and indices of the ``topk`` largest along ``dim``."""
    return torch.topk(values, topk, dim=dim)


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} has no CPU stand-in")

    return missing
