"""Patches for SGLang 0.5.12.post1: its speculative workers are written for CUDA alone.

Their Triton kernels run on CPU tensors through Triton's interpreter (TRITON_INTERPRET=1), but for the few that took
most of a turn (``triton_kernels``); the sgl_kernel functions are this directory's package; the rest is mended here.
"""

from __future__ import annotations

import sys
from functools import partial
from types import ModuleType
from typing import Any

from sgl_on_cpu.after_import import after_import
from sgl_on_cpu.instead_of_triton import replace_kernels
from sgl_on_cpu.patches import TorchWithoutPinning


@after_import("torch.cuda")
def synchronising_nothing(module: ModuleType) -> None:
    """models/llama.py:774 (``set_embed_and_head``) calls these whatever the device."""
    if not module.is_available():
        module.synchronize = lambda device=None: None
        module.empty_cache = lambda: None


@after_import("torch")
def tensors_stay_on_the_cpu(module: ModuleType) -> None:
    """speculative/ngram_worker.py:229, 231 move the mask with a plain ``.cuda()``."""
    if not module.cuda.is_available():
        module.Tensor.cuda = lambda self, *args, **kwargs: self


@after_import("sglang.srt.utils.common")
def speculation_takes_its_cuda_branches(module: ModuleType) -> None:
    """The speculative modules import their kernels only ``if is_cuda()``; all others keep seeing a CPU."""
    really = module.is_cuda

    def is_cuda() -> bool:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        return caller.startswith("sglang.srt.speculative.") or really()

    module.is_cuda = is_cuda


class _CpuThatPassesForCuda(str):
    """A device name that only :meth:`startswith` takes for a CUDA device."""

    def startswith(self, prefix: Any, *bounds: Any) -> bool:
        return prefix == "cuda" or super().startswith(prefix, *bounds)


@after_import("sglang.srt.server_args")
def ngram_may_start_on_cpu(module: ModuleType) -> None:
    """``ServerArgs._handle_speculative_decoding`` (server_args.py:3847) refuses NGRAM unless the device is CUDA."""
    original = module.ServerArgs._handle_speculative_decoding

    def _handle_speculative_decoding(self: Any) -> None:
        device = self.device
        if device == "cpu":
            self.device = _CpuThatPassesForCuda(device)
        try:
            original(self)
        finally:
            self.device = device

    module.ServerArgs._handle_speculative_decoding = _handle_speculative_decoding


@after_import("sglang.srt.speculative.ngram_worker")
def ngram_buffers_on_the_target_s_device(module: ModuleType) -> None:
    """``NGRAMWorker.__init__`` (:48) hard-codes ``cuda:{gpu_id}`` just before it allocates its buffers."""
    original = module.NGRAMWorker._init_preallocated_tensors

    def _init_preallocated_tensors(self: Any) -> None:
        self.device = self.model_runner.device
        original(self)

    module.NGRAMWorker._init_preallocated_tensors = _init_preallocated_tensors


@after_import("sglang.srt.layers.logits_processor")
def nothing_to_pin(module: ModuleType) -> None:
    """LogitsProcessor pins its index tensors (:542, :545, :616) once logprobs meet a prefix, as after a retraction."""
    if not module.torch.cuda.is_available():
        module.torch = TorchWithoutPinning(module.torch)


# Speed only, from here on: the interpreter runs these kernels too, but a speculative turn takes 60 ms instead of 10.


_replace_kernels = partial(replace_kernels, "triton_kernels")

after_import("sglang.srt.mem_cache.allocator")(_replace_kernels("alloc_extend_kernel", "alloc_decode_kernel"))
after_import("sglang.srt.mem_cache.memory_pool")(_replace_kernels("copy_all_layer_kv_cache_tiled"))
after_import("sglang.srt.speculative.spec_utils")(
    _replace_kernels(
        "align_evict_mask_to_page_size",
        "assign_draft_cache_locs",
        "assign_req_to_token_pool",
        "create_extend_after_decode_spec_info",
        "generate_draft_decode_kv_indices",
    )
)
after_import("sglang.srt.speculative.eagle_info_v2")(
    _replace_kernels("assign_extend_cache_locs", "assign_draft_cache_locs_page_size_1", "fill_bonus_tokens")
)
after_import("sglang.srt.layers.attention.utils")(_replace_kernels("create_flashinfer_kv_indices_triton"))
after_import("sglang.srt.model_executor.forward_batch_info")(_replace_kernels("compute_position_kernel"))


@after_import("sglang.srt.mem_cache.common")
def slots_without_triton(module: ModuleType) -> None:
    """SGLang's own torch versions of the two kernels here, which it keeps for other attention backends."""
    module.support_triton = lambda backend: False  # asked by ``write_cache_indices`` (:117) alone
    module.get_last_loc_triton = module.get_last_loc_torch


@after_import("sglang.srt.layers.attention.triton_ops.decode_attention")
def decode_attention_in_torch(module: ModuleType) -> None:
    """``decode_attention_fwd``, 10 to 50 times faster than through the interpreter."""
    from triton_attention import decode_attention_fwd

    module.decode_attention_fwd = decode_attention_fwd


@after_import("sglang.srt.layers.attention.triton_ops.extend_attention")
def extend_attention_in_torch(module: ModuleType) -> None:
    """``extend_attention_fwd``, likewise."""
    from triton_attention import extend_attention_fwd

    module.extend_attention_fwd = extend_attention_fwd
