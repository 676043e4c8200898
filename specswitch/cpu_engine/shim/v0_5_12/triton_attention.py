"""The two entry points of 0.5.12.post1's TritonAttnBackend in torch.

Signatures are those of layers/attention/triton_ops/decode_attention.py and extend_attention.py; metadata and masks
stay SGLang's own.  What a tiny Llama does not need (sinks, sliding window, Grok's temperature)
raises ``NotImplementedError``.
"""

from __future__ import annotations

from typing import Any

import torch
from sgl_on_cpu.kernels import attend, padded, together
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
    slots, own = _prefixes(kv_indptr[: q.shape[0] + 1], kv_indices)
    o[:] = attend(q[:, None], k_buffer[slots], v_buffer[slots], own[:, None], sm_scale * k_scale, logit_cap)[:, 0]
    if v_scale != 1.0:
        o *= v_scale


def _prefixes(kv_indptr: Tensor, kv_indices: Tensor) -> tuple[Tensor, Tensor]:
    """As :func:`sgl_on_cpu.kernels.padded`, from slots in a row: ``kv_indptr`` bs + 1."""
    lengths = kv_indptr.diff()
    at = kv_indptr[:-1, None] + torch.arange(int(lengths.max()) if lengths.numel() else 0)
    return padded(kv_indices[at.clamp(max=kv_indices.numel() - 1).long()], lengths)


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
    starts, prefixes = qo_indptr.tolist(), kv_indptr.diff().tolist()
    for first, end, new in together(qo_indptr.diff().tolist()):
        bs, tokens = end - first, slice(starts[first], starts[end])
        slots, own = _prefixes(kv_indptr[first : end + 1], kv_indices)
        key, value = (
            torch.cat([buffer[slots].to(ours.dtype), ours[tokens].reshape(bs, new, *ours.shape[1:])], 1)
            for buffer, ours in ((k_buffer, k_extend), (v_buffer, v_extend))
        )
        among_new = torch.ones(new, new, dtype=torch.bool)
        visible = torch.cat(
            [own[:, None].expand(-1, new, -1), (among_new.tril() if is_causal else among_new).expand(bs, -1, -1)], 2
        )
        if custom_mask is not None and mask_indptr is not None:
            longest = own.shape[1]
            for number, prefix in enumerate(prefixes[first:end]):
                at = int(mask_indptr[first + number])
                mask = custom_mask[at : at + new * (prefix + new)].view(new, prefix + new).bool()
                visible[number, :, longest:] = mask[:, prefix:]
                if not skip_prefix_custom_mask:
                    visible[number, :, :prefix] = mask[:, :prefix]
        queries = q_extend[tokens].reshape(bs, new, *q_extend.shape[1:])
        o_extend[tokens] = attend(queries, key, value, visible, scale, logit_cap).flatten(0, 1)
