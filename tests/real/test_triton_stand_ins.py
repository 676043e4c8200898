"""The CPU shim's torch kernels write what SGLang's Triton kernels write, run by Triton's interpreter."""

from __future__ import annotations

from typing import Any

import pytest

from specswitch.cpu_engine.releases import installed_release

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        installed_release().version != "0.5.12.post1", reason="only this release's shim replaces Triton kernels"
    ),
]

WIDTH = 64


def both(kernel: Any, grid: tuple[int, ...], *arguments: Any) -> tuple[list[Any], list[Any]]:
    """``arguments`` after a launch of the stand-in, and after one of the original; at least one must be written to."""
    import torch

    def copied() -> list[Any]:
        return [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]

    def plain(values: Any) -> list[Any]:
        return [a.tolist() if isinstance(a, torch.Tensor) else a for a in values]

    ours, original = copied(), copied()
    kernel[grid](*ours)
    kernel.original[grid](*original)
    assert plain(ours) != plain(arguments)
    return plain(ours), plain(original)


def rows_and_table() -> tuple[Any, Any]:
    import torch

    return torch.tensor([2, 0, 3]), torch.arange(4 * WIDTH, dtype=torch.int32).view(4, WIDTH)


@pytest.mark.parametrize("page", [1, 4, 16])
def test_alloc_extend(page: int) -> None:
    import torch
    from sglang.srt.mem_cache.allocator import alloc_extend_kernel

    before, after = torch.tensor([0, 5, 7, 16, 6]), torch.tensor([5, 6, 41, 32, 8])
    last, pages = torch.tensor([-1, 900, 802, 703, 601]), torch.randperm(200)
    out = torch.full((int((after - before).sum()),), -7)
    ours, original = both(alloc_extend_kernel, (5,), before, after, last, pages, out, 8, page)
    assert ours == original


@pytest.mark.parametrize("page", [1, 4, 16])
def test_alloc_decode(page: int) -> None:
    import torch
    from sglang.srt.mem_cache.allocator import alloc_decode_kernel

    lengths, last = torch.tensor([5, 16, 17, 1, 8]), torch.tensor([900, 801, 702, -1, 603])
    ours, original = both(alloc_decode_kernel, (5,), lengths, last, torch.randperm(20), torch.full((5,), -7), 8, page)
    assert ours == original


def test_slots_beyond_the_free_pages_are_left_out() -> None:
    import torch
    from sglang.srt.mem_cache.allocator import alloc_decode_kernel, alloc_extend_kernel

    page = torch.tensor([7])
    out = torch.full((13,), -7)
    alloc_extend_kernel[(1,)](torch.tensor([3]), torch.tensor([16]), torch.tensor([22]), page, out, 1, 4)
    assert out.tolist() == [23, 28, 29, 30, 31] + [-7] * 8
    out = torch.full((3,), -7)
    alloc_decode_kernel[(3,)](torch.tensor([5, 6, 9]), torch.tensor([3, 40, 8]), page, out, 4, 4)
    assert out.tolist()[:2] == [28, 41]


@pytest.mark.parametrize("slots", [1, 5])
def test_copy_all_layer_kv_cache(slots: int) -> None:
    import torch
    from sglang.srt.mem_cache.memory_pool import copy_all_layer_kv_cache_tiled

    def moved(kernel: Any) -> list[Any]:
        buffers = [torch.arange(20 * width, dtype=torch.float32).view(20, width) for width in (8, 8, 40)]
        pointers = torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64)
        strides = torch.tensor([buffer.shape[1] * 4 for buffer in buffers])
        # a chain: 3 is both source and target
        targets, sources = torch.tensor([2, 3, 9, 11, 0])[:slots], torch.tensor([3, 4, 17, 9, 19])[:slots]
        kernel[(3, 2)](pointers, strides, targets, sources, slots, 8, BYTES_PER_TILE=128, num_warps=4, num_stages=2)
        return [buffer.tolist() for buffer in buffers]

    ours = moved(copy_all_layer_kv_cache_tiled)
    assert ours == moved(copy_all_layer_kv_cache_tiled.original)
    assert ours[0][2] == [float(number) for number in range(24, 32)]


def test_assign_req_to_token_pool() -> None:
    import torch
    from sglang.srt.speculative.spec_utils import assign_req_to_token_pool

    start, end = torch.tensor([5, 0, 17]), torch.tensor([9, 40, 17])
    slots = torch.arange(1000, 1044)
    ours, original = both(assign_req_to_token_pool, (3,), *rows_and_table(), start, end, slots, WIDTH, 4)
    assert ours == original


@pytest.mark.parametrize(("topk", "page"), [(1, 1), (4, 1), (1, 16)])
def test_assign_draft_cache_locs(topk: int, page: int) -> None:
    import torch
    from sglang.srt.speculative.spec_utils import assign_draft_cache_locs

    lengths, slots = torch.tensor([5, 0, 33]), torch.arange(1000, 1000 + 3 * topk * 3)
    unused = [None, None, slots, None, None, None, 0]  # what only branches that copy their last page need
    ours, original = both(
        assign_draft_cache_locs, (3,), *rows_and_table(), lengths, *unused, WIDTH, topk, 3, page, 4, 32
    )
    assert ours == original


@pytest.mark.parametrize("page", [4, 16])
def test_align_evict_mask_to_page_size(page: int) -> None:
    import torch
    from sglang.srt.speculative.spec_utils import align_evict_mask_to_page_size

    accepted = torch.tensor([1, 2, 4, 3, 1, 4, 1])
    rejected = torch.arange(5)[None, :] >= accepted[:, None]
    lengths = torch.tensor([1, 3, 12, 16, 31, 29, 15])
    ours, original = both(align_evict_mask_to_page_size, (7,), lengths, rejected.view(-1), page, 5, 8)
    assert ours == original


def test_fill_bonus_tokens() -> None:
    import torch
    from sglang.srt.speculative.eagle_info_v2 import fill_bonus_tokens

    tokens, lengths = torch.arange(50, 62), torch.tensor([1, 4, 2], dtype=torch.int32)
    ours, original = both(fill_bonus_tokens, (3,), tokens, lengths, torch.zeros(3, dtype=torch.int32), 4)
    assert ours == original


def test_assign_extend_cache_locs() -> None:
    import torch
    from sglang.srt.speculative.eagle_info_v2 import assign_extend_cache_locs

    start, end = torch.tensor([5, 0, 17]), torch.tensor([9, 40, 17])
    out = torch.zeros(44, dtype=torch.int64)
    ours, original = both(assign_extend_cache_locs, (3,), *rows_and_table(), start, end, out, WIDTH, 4)
    assert ours == original


def test_assign_draft_cache_locs_page_size_1() -> None:
    import torch
    from sglang.srt.speculative.eagle_info_v2 import assign_draft_cache_locs_page_size_1

    lengths, out = torch.tensor([5, 0, 33]), torch.zeros(3 * 4 * 3, dtype=torch.int64)
    ours, original = both(assign_draft_cache_locs_page_size_1, (3,), *rows_and_table(), lengths, out, WIDTH, 4, 3)
    assert ours == original


@pytest.mark.parametrize("from_start", [True, False])
def test_create_flashinfer_kv_indices(from_start: bool) -> None:
    import torch
    from sglang.srt.layers.attention.utils import create_flashinfer_kv_indices_triton

    rows, table = rows_and_table()
    lengths, bounds = torch.tensor([4, 0, 30]), torch.tensor([0, 4, 4, 34], dtype=torch.int32)
    starts = None if from_start else torch.tensor([1, 2, 3])
    out = torch.zeros(40, dtype=torch.int64)
    ours, original = both(
        create_flashinfer_kv_indices_triton, (3,), table, rows, lengths, bounds, starts, out, table.stride(0)
    )
    assert ours == original


@pytest.mark.parametrize("has_prefix", [True, False])
def test_compute_position(has_prefix: bool) -> None:
    import torch
    from sglang.srt.model_executor.forward_batch_info import compute_position_kernel

    lengths, prefixes = torch.tensor([4, 1, 30], dtype=torch.int32), torch.tensor([7, 0, 2], dtype=torch.int32)
    positions, starts = torch.zeros(35, dtype=torch.int64), torch.zeros(3, dtype=torch.int32)
    ours, original = both(compute_position_kernel, (3,), positions, starts, prefixes, lengths, has_prefix)
    assert ours == original


def test_create_extend_after_decode_spec_info() -> None:
    import torch
    from sglang.srt.speculative.spec_utils import create_extend_after_decode_spec_info

    tokens, lengths = torch.arange(50, 57), torch.tensor([12, 5, 30])
    accepted = torch.tensor([3, 1, 3], dtype=torch.int32)
    positions, bonus = torch.zeros(7, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
    ours, original = both(create_extend_after_decode_spec_info, (3,), tokens, lengths, accepted, positions, bonus, 4)
    assert ours == original


@pytest.mark.parametrize(
    ("topk", "requests", "steps", "page"), [(1, 1, 3, 1), (4, 3, 3, 1), (1, 5, 5, 16), (2, 7, 4, 1)]
)
def test_generate_draft_decode_kv_indices(topk: int, requests: int, steps: int, page: int) -> None:
    import torch
    from sglang.srt.speculative.spec_utils import generate_draft_decode_kv_indices

    generator = torch.Generator().manual_seed(0)
    width, rows = 400, 9
    seq_lens = torch.randint(3, 300, (requests,), generator=generator)
    kv_indices = torch.full((steps, requests * topk * width), -1, dtype=torch.int64)
    kv_indptr = torch.zeros((steps, rows * topk + 1), dtype=torch.int32)
    ours, original = both(
        generate_draft_decode_kv_indices,
        (steps, requests, topk),
        torch.randperm(rows, generator=generator)[:requests],
        torch.randint(0, 4096, (rows, width), generator=generator, dtype=torch.int32),
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
    assert ours == original
