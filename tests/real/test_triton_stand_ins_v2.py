"""As ``test_triton_stand_ins``, for SGLang 0.5.13 and later."""

from __future__ import annotations

import pytest

from specswitch.cpu_engine.releases import installed_release
from specswitch.engine.hooks import swapped

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(installed_release().version == "0.5.12.post1", reason="0.5.12 has not these kernels"),
]


@pytest.mark.parametrize("hidden", [True, False])
def test_gather_spec_extras(hidden: bool) -> None:
    import torch
    from sglang.kernels.ops.speculative import gather_spec_extras as module

    index = torch.tensor([4, 0, 4, 2], dtype=torch.int32)
    buffers = [torch.rand(6, 4), torch.randint(0, 999, (6, 4)), torch.randint(0, 999, (6,), dtype=torch.int32)]
    buffers.append(torch.rand(6, 3, 40) if hidden else None)
    ours = module.gather_spec_extras(index, *buffers)
    with swapped(module, _gather_rows_kernel=module._gather_rows_kernel.original):
        original = module.gather_spec_extras(index, *buffers)
    for mine, theirs, source in zip(ours, original, buffers, strict=True):
        assert (mine is None) is (theirs is None) is (source is None)
        assert source is None or (torch.equal(mine, theirs) and torch.equal(mine[1], source[0]))


def test_get_last_loc() -> None:
    import torch
    from sglang.kernels.ops.memory import common
    from sglang.srt.mem_cache import allocation

    table, rows = torch.arange(4 * 64, dtype=torch.int32).view(4, 64), torch.tensor([2, 0, 3])
    lengths = torch.tensor([5, 0, 64])
    ours, original = (module.get_last_loc_triton(table, rows, lengths) for module in (allocation, common))
    assert ours.tolist() == original.tolist() == [2 * 64 + 4, -1, 3 * 64 + 63]
