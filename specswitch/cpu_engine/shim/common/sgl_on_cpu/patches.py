"""Patches that every supported release needs on a CPU.  Each says what it mends and where."""

from __future__ import annotations

import gc
from types import ModuleType
from typing import Any

from sgl_on_cpu.after_import import after_import

# Speed only: what torch, transformers and SGLang make while they are imported lives on, and at Python's own thresholds
# a quarter of the time of these imports is spent on looking whether it does.  A server imports them in each process.
gc.set_threshold(50_000, 20, 20)


@after_import("transformers.utils.import_utils")
def torchvision_is_a_stand_in(module: ModuleType) -> None:
    """SGLang imports torchvision for images; transformers must not take the stand-in for the real one."""
    module.is_torchvision_available = lambda: False


@after_import("torch")
def streams_mean_nothing_to_a_cpu_tensor(module: ModuleType) -> None:
    """The overlap scheduler hands tensors to streams (0.5.12.post1 managers/overlap_utils.py:146 and
    speculative/eagle_worker_v2.py:975; 0.5.17 managers/overlap_utils.py:376); torch refuses that on the CPU."""
    if not module.cuda.is_available():
        module.Tensor.record_stream = lambda self, stream: None


@after_import("triton.runtime.interpreter")
def language_is_patched_once_per_function(module: ModuleType) -> None:
    """Speed only: at every call of a device function the interpreter patches the whole language again
    (``InterpretedFunction.__call__``), on top of what it patched before."""
    patch_language, patched = module._patch_lang, set()

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fn not in patched:
            patched.add(self.fn)
            patch_language(self.fn)
        return self.rewrite()(*args, **kwargs)

    module.InterpretedFunction.__call__ = call


class TorchWithoutPinning:
    """Stands for the name ``torch`` in a module that pins memory whatever the device: nothing to pin for a CPU."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)

    def tensor(self, *args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        return self._torch.tensor(*args, **kwargs)

    def full(self, *args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        return self._torch.full(*args, **kwargs)


@after_import("sglang.srt.constrained.xgrammar_backend")
def grammar_mask_on_cpu(module: ModuleType) -> None:
    """``apply_vocab_mask`` raises "Unsupported device: cpu": of XGrammarGrammar in 0.5.12.post1 (:125) and
    0.5.17 (:125), of the batched XGrammarBackend in 0.5.17 (:251) and 0.5.23 (:301)."""
    from xgrammar import apply_token_bitmask_inplace

    def apply_vocab_mask(logits: Any, vocab_mask: Any) -> None:
        apply_token_bitmask_inplace(logits, vocab_mask, backend="cpu")

    for owner in vars(module).copy().values():
        own = vars(owner).get("apply_vocab_mask") if isinstance(owner, type) else None
        if own is None or owner.__module__ != module.__name__:
            continue
        if isinstance(own, staticmethod):
            owner.apply_vocab_mask = staticmethod(apply_vocab_mask)
        else:
            owner.apply_vocab_mask = lambda self, logits, vocab_mask: apply_vocab_mask(logits, vocab_mask)
