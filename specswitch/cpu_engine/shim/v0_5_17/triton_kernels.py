"""Triton kernels of 0.5.17 to 0.5.23 in torch, for speed; arguments are the kernels' own, after the launch grid."""

from __future__ import annotations

from torch import Tensor


def _gather_rows_kernel(rows: int, blocks: int, index: Tensor, *buffers: Tensor | int, HAS3: bool, BLOCK: int) -> None:  # noqa: N803
    """sglang/kernels/ops/speculative/gather_spec_extras.py: row ``index[i]`` of each source to row i of its target.
    ``buffers`` are three or (``HAS3``) four triples of source, target and width."""
    for number in range(4 if HAS3 else 3):
        source, target, _ = buffers[3 * number : 3 * number + 3]
        target.copy_(source[index[:rows].long()])
