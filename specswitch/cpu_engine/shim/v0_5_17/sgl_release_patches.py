"""Patches for SGLang 0.5.17 and 0.5.23, whose own CPU engine needs AMX kernels and keeps overlap off.

The kernels are this directory's ``sgl_kernel``; with overlap SGLang's Triton kernels run through Triton's
interpreter, but for those that took most of a turn (``triton_kernels``).
"""

from __future__ import annotations

from importlib import metadata
from types import ModuleType
from typing import Any

from sgl_on_cpu.after_import import after_import
from sgl_on_cpu.instead_of_triton import replace_kernels
from sgl_on_cpu.patches import TorchWithoutPinning


@after_import("sglang.srt.runtime_context")
def amx_backend_without_amx_0_5_23(module: ModuleType) -> None:
    """``_attention_backend_platform_fallbacks`` (arg_groups/overrides.py:1301) would give up the intel_amx backend,
    the one that knows speculation.  Only this choice reads the fact; the layers ask ``cpu_has_amx_support()``."""
    if hasattr(module, "override_platform"):
        module.override_platform(has_amx=True).install()


@after_import("sglang.srt.arg_groups.overrides")
def amx_backend_without_amx_0_5_17(module: ModuleType) -> None:
    """The same choice in 0.5.17 (arg_groups/overrides.py:2222)."""
    if hasattr(module, "cpu_has_amx_support"):
        module.cpu_has_amx_support = lambda: True


@after_import("sglang.srt.arg_groups.speculative_hook")
def overlap_as_asked_for(module: ModuleType) -> None:
    """``_disable_overlap_schedule_for_cpu`` (0.5.17 :14, 0.5.23 :66) turns overlap off for speculation on a CPU,
    whatever the arguments say.  The loop itself runs there."""
    module._disable_overlap_schedule_for_cpu = lambda server_args: None


# speed only: the interpreter runs this kernel too
after_import("sglang.kernels.ops.speculative.gather_spec_extras")(
    replace_kernels("triton_kernels", "_gather_rows_kernel")
)


@after_import("sglang.srt.mem_cache.allocation")
def last_slots_without_triton(module: ModuleType) -> None:
    """Speed only: SGLang's own torch version, which it keeps for other attention backends."""
    module.get_last_loc_triton = module.get_last_loc_torch


if metadata.version("sglang") == "0.5.17":

    @after_import("sglang.srt.constrained.xgrammar_backend")
    def nothing_to_pin(module: ModuleType) -> None:
        """``_allocate_token_bitmask`` (:60) pins the grammar's mask; 0.5.23 asks whether it can."""
        if not module.torch.cuda.is_available():
            module.torch = TorchWithoutPinning(module.torch)

    @after_import("sglang.srt.layers.attention.intel_amx_backend")
    def lengths_from_the_metadata(module: ModuleType) -> None:
        """``forward_extend`` (:216) and ``forward_decode`` (:262) read the lengths from their metadata and then
        overwrite them with ``forward_batch.seq_lens``: verify forgets the draft tokens, and multi-step draft decode
        its own step and beams.  0.5.23 no longer does."""
        backend = module.IntelAMXAttnBackend
        forward_extend, forward_decode = backend.forward_extend, backend.forward_decode

        def with_lengths(call: Any, lengths: Any, forward_batch: Any) -> Any:
            kept, forward_batch.seq_lens = forward_batch.seq_lens, lengths
            try:
                return call()
            finally:
                forward_batch.seq_lens = kept

        def extend(self: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *args: Any, **kw: Any) -> Any:
            def call() -> Any:
                return forward_extend(self, q, k, v, layer, forward_batch, *args, **kw)

            return with_lengths(call, self.extend_metadata[0], forward_batch)

        def decode(self: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *args: Any, **kw: Any) -> Any:
            def call() -> Any:
                return forward_decode(self, q, k, v, layer, forward_batch, *args, **kw)

            draft = self.draft_decode_metadata
            return call() if draft is None else with_lengths(call, draft[1], forward_batch)

        backend.forward_extend, backend.forward_decode = extend, decode
