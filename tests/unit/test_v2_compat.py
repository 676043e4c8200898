"""Every spelling of SGLang 0.5.13 to 0.5.23 that the v2 engine understands, and what it refuses."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import sglang_stand_in as stand_in
import torch
from pytest_mock import MockerFixture

from specswitch.engine.hooks import InstanceHooks


@pytest.fixture(autouse=True)
def _sglang(mocker: MockerFixture) -> Iterator[None]:
    mocker.patch.dict(sys.modules, stand_in.modules())
    stand_in.forget_engine()
    yield
    stand_in.forget_engine()


@pytest.fixture
def compat() -> Any:
    return importlib.import_module("specswitch.engine.v2_compat")


def req_0_5_13() -> Any:
    req = SimpleNamespace(kv_committed_len=7, kv_allocated_len=9, req_pool_idx=3, fill_len=5, extended=[])
    req.origin_input_ids, req.output_ids, req.full_untruncated_fill_ids = [1, 2], [3], []
    req.set_extend_input_len = req.extended.append
    return req


def req_0_5_17() -> Any:
    req = SimpleNamespace(kv_committed_len=7, req_pool_idx=3, kv=SimpleNamespace(kv_allocated_len=9))
    req.extend_range = SimpleNamespace(start=0, end=5)
    req._refresh_fill_ids = MagicMock()
    req.set_extend_range = lambda start, end: setattr(req, "extend_range", SimpleNamespace(start=start, end=end))
    return req


def req_0_5_23() -> Any:
    held = SimpleNamespace(kv_committed_len=7, kv_allocated_len=9, req_pool_idx=3)
    return SimpleNamespace(kv=held, extend_end=5, refresh_fill_ids=MagicMock())


@pytest.mark.parametrize("make", [req_0_5_13, req_0_5_17, req_0_5_23])
def test_lengths_and_row_of_a_request(make: Any, compat: Any) -> None:
    req = make()
    assert (compat.committed_len(req), compat.allocated_len(req), compat.row_index(req)) == (7, 9, 3)
    compat.set_committed_len(req, 8)
    compat.set_allocated_len(req, 8)
    assert (compat.committed_len(req), compat.allocated_len(req)) == (8, 8)


@pytest.mark.parametrize("make", [req_0_5_13, req_0_5_17, req_0_5_23])
def test_the_end_of_an_extend(make: Any, compat: Any) -> None:
    req = make()
    assert compat.extend_end(req) == 5
    compat.set_extend_end(req, 2, 6)
    assert compat.extend_end(req) == 6


def test_an_extend_end_keeps_what_the_release_wants_kept(compat: Any) -> None:
    oldest, middle, newest = req_0_5_13(), req_0_5_17(), req_0_5_23()
    for req in (oldest, middle, newest):
        compat.set_extend_end(req, 2, 6)
    assert oldest.full_untruncated_fill_ids == [1, 2, 3]
    assert oldest.extended == [4]
    assert middle.extend_range.start == 2
    middle._refresh_fill_ids.assert_called_once_with()
    newest.refresh_fill_ids.assert_called_once_with()


def test_whole_pages_are_freed_without_a_search_where_sglang_can(compat: Any) -> None:
    slots = torch.arange(4)
    newer, older = MagicMock(), MagicMock(spec=["free"])
    compat.free_whole_pages(newer, slots)
    newer.free_segment.assert_called_once_with(slots, start_pos=0)
    newer.free.assert_not_called()
    compat.free_whole_pages(older, slots)
    older.free.assert_called_once_with(slots)


def test_the_running_batch_of_a_plan_or_of_the_scheduler(compat: Any) -> None:
    scheduler = SimpleNamespace(running_batch="old")
    plan = SimpleNamespace(running_batch="old", batch_to_run="decode")
    compat.set_running_batch(scheduler, plan, "new")
    assert (scheduler.running_batch, plan.running_batch, compat.batch_to_run(plan)) == ("old", "new", "decode")
    batch = SimpleNamespace()
    compat.set_running_batch(scheduler, batch, "new")
    assert scheduler.running_batch == "new"
    assert compat.batch_to_run(batch) is batch
    assert compat.batch_to_run(None) is None


def test_tokens_are_relayed_bare_or_in_a_payload(compat: Any) -> None:
    tokens, rows = torch.tensor([4, 5]), torch.tensor([2, 0])
    for payload in (tokens, SimpleNamespace(bonus_tokens=tokens)):
        future_map = SimpleNamespace(output_tokens_buf=torch.zeros(3, dtype=torch.int32))
        compat.stash_tokens(future_map, rows, payload)
        assert future_map.output_tokens_buf.tolist() == [5, 0, 4]


class CacheUpTo0520:
    def cache_finished_req(self, req: Any, is_insert: bool = True, **kwargs: Any) -> str:
        return "finished"

    def cache_unfinished_req(self, req: Any, **kwargs: Any) -> str:
        return "unfinished"


class CacheOf0521:
    def insert_req(self, req: Any, *, up_to: int) -> str:
        return "inserted"

    def cache_unfinished_req(self, req: Any, **kwargs: Any) -> str:
        return "unfinished"


class CacheSince0522:
    def checkpoint(self, req: Any, *, up_to: int) -> str:
        return "kept"


def test_what_goes_into_the_prefix_cache_is_told_before_and_after(compat: Any) -> None:
    told: list[tuple[Any, int]] = []
    kept: list[tuple[Any, int]] = []
    hooks, req = InstanceHooks(), req_0_5_17()
    old, middle, new = CacheUpTo0520(), CacheOf0521(), CacheSince0522()
    for cache in (old, middle, new):
        compat.hook_prefix_inserts(
            hooks, cache, lambda req, length: told.append((req, length)), lambda req, length: kept.append((req, length))
        )
    assert old.cache_finished_req(req, is_insert=False, kv_len_to_handle=4) == "finished"
    assert told == []
    assert old.cache_finished_req(req, kv_len_to_handle=4) == "finished"
    assert old.cache_finished_req(req) == "finished"
    assert old.cache_unfinished_req(req, chunked=True) == "unfinished"
    assert middle.insert_req(req, up_to=6) == "inserted"
    assert new.checkpoint(req, up_to=8) == "kept"
    assert [length for _, length in told] == [4, 7, 5, 6, 8]
    assert [length for _, length in kept] == [5, 8]


def test_resolved_arguments_are_those_that_sglang_decided_on(compat: Any, mocker: MockerFixture) -> None:
    assert compat.resolved("arguments before 0.5.15") == "arguments before 0.5.15"
    module = ModuleType("sglang.srt.arg_groups.overrides")
    module.resolved_view = lambda server_args: "view"  # type: ignore[attr-defined]
    groups = {"sglang.srt.arg_groups": ModuleType("sglang.srt.arg_groups"), module.__name__: module}
    # where SGLang is loaded, and has both
    mocker.patch.dict(sys.modules, {"sglang.srt.arg_groups.model_override_base": None, **groups})
    assert compat.resolved(SimpleNamespace(_resolved_overrides=[])) == "view"


# What is refused


def arguments(**given: Any) -> Any:
    return SimpleNamespace(**{"speculative_algorithm": "EAGLE", "pp_size": 1, "disaggregation_mode": "null", **given})


@pytest.mark.parametrize("algorithm", ["EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM"])
def test_tested_algorithms_are_accepted(algorithm: str) -> None:
    supported = importlib.import_module("specswitch.engine.supported_v2")
    assert supported.unsupported(arguments(speculative_algorithm=algorithm)) is None


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"speculative_algorithm": None}, "--speculative-algorithm is not set"),
        ({"speculative_algorithm": "DFLASH"}, "DFLASH"),
        ({"speculative_algorithm": "DSPARK"}, "DSPARK"),
        ({"speculative_algorithm": "FROZEN_KV_MTP"}, "FROZEN_KV_MTP"),
        ({"speculative_algorithm": "UNO"}, "UNO"),
        ({"speculative_algorithm": "NEW_IDEA"}, "NEW_IDEA"),
        ({"enable_multi_layer_eagle": True}, "multi-layer EAGLE"),
        ({"enable_dp_attention": True}, "--enable-dp-attention"),
        ({"pp_size": 2}, "--pipeline-parallel-size"),
        ({"disaggregation_mode": "decode"}, "disaggregation"),
        ({"enable_mixed_chunk": True}, "--enable-mixed-chunk"),
        ({"enable_hisparse": True}, "--enable-hisparse"),
        ({"enable_hierarchical_cache": True}, "--enable-hierarchical-cache"),
        ({"dllm_algorithm": "LowConfidence"}, "--dllm-algorithm"),
    ],
)
def test_what_is_not_switched_is_refused_by_name(given: dict[str, Any], named: str) -> None:
    supported = importlib.import_module("specswitch.engine.supported_v2")
    sentence = supported.unsupported(arguments(**given))
    assert sentence is not None
    assert named in sentence
    assert "because" in sentence or "but" in sentence
    assert sentence.endswith(".")


@pytest.mark.parametrize(
    ("what", "scheduler"),
    [
        ("multimodal", {"is_multimodal": True}),
        ("encoder-decoder", {"is_encoder_decoder": True}),
        ("sliding-window", {"is_hybrid_swa": True}),
        ("Mamba", {"is_hybrid_ssm": True}),
    ],
)
def test_models_with_more_than_one_pool_of_slots_are_refused(what: str, scheduler: dict[str, bool]) -> None:
    supported = importlib.import_module("specswitch.engine.supported_v2")
    made = stand_in.Scheduler([])
    assert supported.unsupported_scheduler(made) is None
    for name, value in scheduler.items():
        setattr(made.model_config if hasattr(made.model_config, name) else made, name, value)
    assert what in supported.unsupported_scheduler(made)
