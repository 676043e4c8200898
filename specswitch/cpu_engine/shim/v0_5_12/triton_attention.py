"""The two entry points of 0.5.12.post1's TritonAttnBackend in torch.

Signatures are those of layers/attention/triton_ops/decode_attention.py and extend_attention.py; metadata and masks
stay SGLang's own.  What a tiny Llama does not need (sinks, sliding window, Grok's temperature)
raises ``NotImplementedError``.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from sgl_on_cpu.kernels import attend
from torch import Tensor


def _refuse(**features: Any) -> None:
    used = [name for name, value in features.items() if value is not None and value != -1]
    if used:
        raise NotImplementedError(f"attention on the CPU does not know {', '.join(used)}")


def decode_attention_fwd(
    q: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    o: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    attn_logits: Tensor,
    attn_lse: Tensor,
    num_kv_splits: Tensor,
    max_kv_splits: int,
    sm_scale: float,
    k_scale: float,
    v_scale: float,
    logit_cap: float = 0.0,
    sinks: Tensor | None = None,
    xai_temperature_len: int = -1,
    **kernel_options: Any,
) -> None:
    """One query per row: ``q`` and ``o`` rows x heads x dim, ``kv_indptr`` rows + 1, ``kv_indices`` KV slots."""
    _refuse(sinks=sinks, xai_temperature_len=xai_temperature_len)
    bounds = kv_indptr.tolist()
    for row in range(q.shape[0]):
        slots = kv_indices[bounds[row] : bounds[row + 1]].long()
        if slots.numel() == 0:
            o[row].zero_()
            continue
        out = attend(q[row : row + 1], k_buffer[slots], v_buffer[slots], None, sm_scale * k_scale, logit_cap)
        o[row : row + 1] = out * v_scale


def extend_attention_fwd(
    q_extend: Tensor,
    k_extend: Tensor,
    v_extend: Tensor,
    o_extend: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    custom_mask: Tensor | None,
    is_causal: bool,
    mask_indptr: Tensor | None,
    max_len_extend: int,
    k_scale: float,
    v_scale: float,
    sm_scale: float | None = None,
    logit_cap: float = 0.0,
    skip_prefix_custom_mask: bool = True,
    sliding_window_size: int | None = -1,
    sinks: Tensor | None = None,
    window_kv_offsets: Tensor | None = None,
    xai_temperature_len: int = -1,
) -> None:
    """New tokens over a cached prefix: ``*_extend`` tokens x heads x dim, ``*_indptr`` bs + 1, ``kv_indices`` the
    prefix's KV slots, ``custom_mask`` the tree masks of the batch in a row (tokens x (prefix + tokens) each)."""
    _refuse(sliding_window_size=sliding_window_size, sinks=sinks, xai_temperature_len=xai_temperature_len)
    scale = sm_scale or q_extend.shape[-1] ** -0.5
    queries, prefixes = qo_indptr.tolist(), kv_indptr.tolist()
    for b, (start, end) in enumerate(pairwise(queries)):
        length = end - start
        if length <= 0:
            continue
        slots = kv_indices[prefixes[b] : prefixes[b + 1]].long()
        prefix = slots.numel()
        key = torch.cat([k_buffer[slots].to(k_extend.dtype), k_extend[start:end]])
        value = torch.cat([v_buffer[slots].to(v_extend.dtype), v_extend[start:end]])
        visible = None
        if custom_mask is not None and mask_indptr is not None:
            at = int(mask_indptr[b])
            visible = custom_mask[at : at + length * (prefix + length)].view(length, prefix + length).bool()
            if skip_prefix_custom_mask:
                visible = visible.clone()
                visible[:, :prefix] = True
        elif is_causal:
            visible = torch.ones(length, prefix + length, dtype=torch.bool).tril(prefix)
        o_extend[start:end] = attend(q_extend[start:end], key, value, visible, scale, logit_cap)
