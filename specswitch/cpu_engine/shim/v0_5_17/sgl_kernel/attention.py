"""The two attention operators of IntelAMXAttnBackend (srt/layers/attention/intel_amx_backend.py).

0.5.23 hands over KV scales and ``is_causal``, 0.5.17 does not.  What a tiny Llama does not need raises
``NotImplementedError``.
"""

from __future__ import annotations

from importlib import metadata

import torch
from sgl_on_cpu.kernels import attend, padded, together
from torch import Tensor


def _refuse(cross_attention: bool, window: int, sinks: Tensor | None, scale: float = 1.0, causal: bool = True) -> None:
    if cross_attention or window > 0 or sinks is not None or scale != 1.0 or not causal:
        raise NotImplementedError(
            "attention on the CPU knows neither cross attention, sliding windows, sinks, KV scales nor non-causal masks"
        )


def _extend(
    q: Tensor,
    out: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
    scaling: float,
    logit_cap: float,
    tree_mask: Tensor | None,
) -> None:
    """Each request's last ``extend_seq_lens`` tokens over its ``seq_lens`` slots, whose KV is written already.

    ``q``/``out`` tokens x heads x dim, ``tree_mask`` n x n per request or None for causal.
    """
    mask_at = 0
    for first, end, new in together(extend_seq_lens.tolist()):
        lengths = seq_lens[first:end]
        slots, own = padded(req_to_token[req_pool_indices[first:end]], lengths)
        if tree_mask is None:
            last = lengths[:, None] - new + torch.arange(new)
            visible = torch.arange(own.shape[1]) <= last[:, :, None]
        else:
            visible = own[:, None].repeat(1, new, 1)
            for rows, length in zip(visible, lengths.tolist(), strict=True):
                rows[:, length - new : length] = tree_mask.view(-1)[mask_at : mask_at + new * new].view(new, new)
                mask_at += new * new
        start = int(extend_start_loc[first])
        tokens = slice(start, start + (end - first) * new)
        queries = q[tokens].reshape(end - first, new, *q.shape[1:])
        out[tokens] = attend(queries, k_buffer[slots], v_buffer[slots], visible, scaling, logit_cap).flatten(0, 1)


def _decode(
    q: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    out: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    loc: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    scaling: float,
    logit_cap: float,
) -> None:
    """One query per row, rows x heads x dim, over its ``seq_lens`` slots; ``k``/``v`` are written to ``loc`` first."""
    if k is not None and v is not None:
        k_buffer[loc] = k.view(-1, *k_buffer.shape[1:]).to(k_buffer.dtype)
        v_buffer[loc] = v.view(-1, *v_buffer.shape[1:]).to(v_buffer.dtype)
    slots, own = padded(req_to_token[req_pool_indices], seq_lens)
    queries = q[: len(slots), None]
    out[: len(slots)] = attend(queries, k_buffer[slots], v_buffer[slots], own[:, None], scaling, logit_cap)[:, 0]


# fmt: off
# The argument lists below are SGLang's, by position.
def _extend_0_5_17(
    q, k, v, out, k_buffer, v_buffer, req_to_token, req_pool_indices, seq_lens, extend_seq_lens, extend_start_loc,
    max_extend_len, scaling, logit_cap, cross_attention, window, encoder_lens, sinks, tree_mask,
):
    _refuse(cross_attention, window, sinks)
    _extend(q, out, k_buffer, v_buffer, req_to_token, req_pool_indices, seq_lens, extend_seq_lens, extend_start_loc,
            scaling, logit_cap, tree_mask)


def _extend_0_5_23(
    q, k, v, out, k_buffer, v_buffer, k_scale, v_scale, req_to_token, req_pool_indices, seq_lens, extend_seq_lens,
    extend_start_loc, max_extend_len, scaling, logit_cap, cross_attention, window, encoder_lens, sinks, tree_mask,
    is_causal,
):
    _refuse(cross_attention, window, sinks, k_scale * v_scale, is_causal)
    _extend(q, out, k_buffer, v_buffer, req_to_token, req_pool_indices, seq_lens, extend_seq_lens, extend_start_loc,
            scaling, logit_cap, tree_mask)


def _decode_0_5_17(
    q, k_buffer, v_buffer, out, k, v, loc, attn_logits, req_to_token, req_pool_indices, seq_lens, scaling, logit_cap,
    cross_attention, window, encoder_lens, sinks,
):
    _refuse(cross_attention, window, sinks)
    _decode(q, k_buffer, v_buffer, out, k, v, loc, req_to_token, req_pool_indices, seq_lens, scaling, logit_cap)


def _decode_0_5_23(
    q, k_buffer, v_buffer, k_scale, v_scale, out, k, v, loc, attn_logits, req_to_token, req_pool_indices, seq_lens,
    scaling, logit_cap, cross_attention, window, encoder_lens, sinks,
):
    _refuse(cross_attention, window, sinks, k_scale * v_scale)
    _decode(q, k_buffer, v_buffer, out, k, v, loc, req_to_token, req_pool_indices, seq_lens, scaling, logit_cap)
# fmt: on


if metadata.version("sglang") == "0.5.17":
    torch.ops.sgl_kernel.extend_attention_cpu = _extend_0_5_17
    torch.ops.sgl_kernel.decode_attention_cpu = _decode_0_5_17
else:
    torch.ops.sgl_kernel.extend_attention_cpu = _extend_0_5_23
    torch.ops.sgl_kernel.decode_attention_cpu = _decode_0_5_23
