"""The torch version of SGLang's draft KV index kernel against the kernel itself, in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def unpatched() -> ModuleType:
    """A second copy of SGLang's module, run without the CPU engine's patches."""
    patched = pytest.importorskip("sglang.srt.speculative.spec_utils")
    if not hasattr(patched, "generate_draft_decode_kv_indices"):
        pytest.skip("this release computes the indices elsewhere")
    spec = importlib.util.spec_from_file_location("unpatched_spec_utils", patched.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("topk", "requests", "steps", "page"), [(1, 1, 3, 1), (4, 3, 3, 1), (1, 5, 5, 16), (2, 7, 4, 1)]
)
def test_same_indices(unpatched: ModuleType, topk: int, requests: int, steps: int, page: int) -> None:
    import torch
    from sglang.srt.speculative import spec_utils

    if type(spec_utils.generate_draft_decode_kv_indices) is type(unpatched.generate_draft_decode_kv_indices):
        pytest.skip("this release's kernel runs unpatched")
    generator = torch.Generator().manual_seed(0)
    width, rows = 400, 9
    req_to_token = torch.randint(0, 4096, (rows, width), generator=generator, dtype=torch.int32)
    req_pool_indices = torch.randperm(rows, generator=generator)[:requests]
    seq_lens = torch.randint(3, 300, (requests,), generator=generator)

    def indices(kernel: object) -> tuple[torch.Tensor, torch.Tensor]:
        kv_indices = torch.full((steps, requests * topk * width), -1, dtype=torch.int64)
        kv_indptr = torch.zeros((steps, rows * topk + 1), dtype=torch.int32)
        kernel[(steps, requests, topk)](  # type: ignore[index]
            req_pool_indices,
            req_to_token,
            seq_lens,
            kv_indices,
            kv_indptr,
            seq_lens.repeat_interleave(topk),
            width,
            kv_indices.shape[1],
            kv_indptr.shape[1],
            *(1 << (n - 1).bit_length() for n in (requests, steps, requests * topk)),
            page,
        )
        return kv_indices, kv_indptr

    expected = indices(unpatched.generate_draft_decode_kv_indices)
    got = indices(spec_utils.generate_draft_decode_kv_indices)
    assert all(torch.equal(left, right) for left, right in zip(got, expected, strict=True))
