"""Stand-in for the CPU build of sgl_kernel, for SGLang 0.5.17 to 0.5.23 on a processor without AMX.

Only what plain and speculative decoding call: names and argument orders are those of the call sites in
sglang.kernels.ops.speculative, sglang.kernels.ops.kvcache, srt/mem_cache/allocation.py and
srt/layers/attention/intel_amx_backend.py.  torch.ops.sgl_kernel.convert_weight_packed is left out on purpose:
without it ``cpu_has_amx_support()`` stays False and every layer keeps its ``forward_native``.
"""

from __future__ import annotations

from . import attention  # noqa: F401  (registers torch.ops)
from .kv import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
)
from .speculative import (
    build_tree_kernel_efficient_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
    verify_tree_greedy_cpu,
)

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]
