"""Which of the target's forwards are kept, which forget, and which do not run at all."""

from __future__ import annotations

import enum
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
from sglang_stand_in import Algorithm, Forward, Request

from specswitch.config import SwitchConfig
from specswitch.engine import build
from specswitch.engine.draft_gap import open_gap
from specswitch.engine.hooks import InstanceHooks
from specswitch.errors import ConfigError

WIDTH = 4


class HiddenMode(enum.IntEnum):
    NULL = 0
    FULL = 2


class Target:
    """Puts out each slot's number as its hidden state."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def forward_batch_generation(
        self, batch: Any, forward_batch: Any = None, *, capture_hidden_mode: Any = None
    ) -> SimpleNamespace:
        self.asked.append(capture_hidden_mode)
        slots = (batch or forward_batch).out_cache_loc
        hidden = slots.to(torch.float32).unsqueeze(1).repeat(1, WIDTH)
        return SimpleNamespace(logits_output=SimpleNamespace(hidden_states=hidden))


class OlderTarget(Target):
    """Is told by the batch, as in SGLang 0.5.13 to 0.5.15."""

    def forward_batch_generation(self, batch: Any, forward_batch: Any = None) -> SimpleNamespace:  # type: ignore[override]
        return super().forward_batch_generation(
            batch, forward_batch, capture_hidden_mode=getattr(batch, "capture_hidden_mode", None)
        )


@pytest.fixture(autouse=True)
def _sglang(mocker: MockerFixture) -> Iterator[None]:
    modules = stand_in.modules()
    modules["sglang.srt.model_executor.forward_batch_info"].CaptureHiddenMode = HiddenMode  # type: ignore[attr-defined]
    for name, attribute in (
        ("sglang.srt.layers.logits_processor", "LogitsProcessorOutput"),
        ("sglang.srt.managers.utils", "GenerationBatchResult"),
    ):
        modules[name] = ModuleType(name)
        setattr(modules[name], attribute, SimpleNamespace)
    mocker.patch.dict(sys.modules, modules)
    stand_in.forget_engine()
    yield
    stand_in.forget_engine()


@pytest.fixture(params=[Target, OlderTarget])
def target(request: pytest.FixtureRequest) -> Target:
    made: Target = request.param()
    return made


def alone(target: Any, standalone: bool = False, report: Any = None) -> Any:
    module = importlib.import_module("specswitch.engine.draft_alone")
    scheduler = SimpleNamespace(
        token_to_kv_pool_allocator=SimpleNamespace(size=60, device="cpu"),
        req_to_token_pool=SimpleNamespace(req_to_token=torch.arange(100).reshape(2, 50) % 60),
        tp_worker=target,
        spec_algorithm=SimpleNamespace(is_standalone=lambda: standalone),
        page_size=1,
    )
    made = module.DraftAlone(scheduler, SwitchConfig(draft_kv_budget=1), 1000)
    made.attach(InstanceHooks(), report or MagicMock())
    return made


def batch(*slots: int, mode: Any = Forward.DECODE, algorithm: Any = Algorithm.NONE, wants: bool = False) -> Any:
    return SimpleNamespace(
        out_cache_loc=torch.tensor(slots),
        forward_mode=mode,
        spec_algorithm=algorithm,
        return_hidden_states=wants,
        capture_hidden_mode=None,
    )


def is_kept(made: Any, *slots: int) -> list[bool]:
    return [bool(count) for count in made.kept.leading(torch.tensor(slots), [1] * len(slots))]


def test_a_plain_step_is_kept_and_its_result_is_as_without(target: Target) -> None:
    made, step = alone(target), batch(3, 7)
    result = target.forward_batch_generation(step)
    assert is_kept(made, 3, 5, 7) == [True, False, True]
    assert made.kept.of(torch.tensor([7, 3]))[:, 0].tolist() == [7, 3]
    assert target.asked == [HiddenMode.FULL]
    assert step.capture_hidden_mode is None
    assert result.logits_output.hidden_states is None


@pytest.mark.parametrize(
    "other",
    [
        {"mode": Forward.EXTEND, "algorithm": Algorithm.EAGLE},
        {"algorithm": Algorithm.EAGLE},
        {"wants": True},
    ],
    ids=["a prefill", "a verification that brings its batch", "a plain step whose clients want hidden states"],
)
def test_other_forwards_forget_the_slots_that_they_write(target: Target, other: dict[str, Any]) -> None:
    made = alone(target)
    target.forward_batch_generation(batch(3, 7))
    result = target.forward_batch_generation(batch(7, 9, **other))
    assert is_kept(made, 3, 7, 9) == [True, False, False]
    assert target.asked[-1] is None
    assert result.logits_output.hidden_states is not None


def test_a_verification_forgets_the_slots_that_it_writes(target: Target) -> None:
    made = alone(target)
    target.forward_batch_generation(batch(3, 7))
    target.forward_batch_generation(batch=None, forward_batch=SimpleNamespace(out_cache_loc=torch.tensor([3])))  # type: ignore[call-arg]
    assert is_kept(made, 3, 7) == [False, True]


def test_the_same_tokens_again_forget_nothing(target: Target) -> None:
    made = alone(target)
    target.forward_batch_generation(batch(3, 7))
    with made.over_known_tokens():
        target.forward_batch_generation(batch(3, 7, mode=Forward.EXTEND, algorithm=Algorithm.EAGLE))
    assert is_kept(made, 3, 7) == [True, True]


def test_the_target_is_answered_for(target: Target) -> None:
    made, req = alone(target), Request("r", list(range(10)), list(range(50, 60)), 0, 20)
    target.forward_batch_generation(batch(*range(10, 19)))
    open_gap(req, 10)
    ranges, is_more = made.what_is_missing([req], room=100)
    assert [(start, end) for _, start, end in ranges] == [(10, 19)]
    assert not is_more
    asked = len(target.asked)
    with made.without_target(ranges, torch.arange(10, 19)):
        result = target.forward_batch_generation(batch(*range(10, 19), mode=Forward.EXTEND))
    assert len(target.asked) == asked
    assert result.logits_output.hidden_states[:, 0].tolist() == list(range(10, 19))
    assert result.next_token_ids.tolist() == [59]


def test_what_does_not_fit_a_pause_is_left_for_later(target: Target) -> None:
    made, req = alone(target), Request("r", list(range(10)), list(range(50, 60)), 0, 20)
    target.forward_batch_generation(batch(*range(10, 19)))
    open_gap(req, 10)
    ranges, is_more = made.what_is_missing([req], room=6)
    assert [(start, end) for _, start, end in ranges] == [(10, 16)]
    assert is_more


def test_the_target_runs_to_a_little_past_the_first_token_that_is_kept(target: Target) -> None:
    made, req = alone(target), Request("r", list(range(10)), list(range(50, 80)), 0, 40)
    target.forward_batch_generation(batch(*range(14, 39)))
    open_gap(req, 10)
    assert made.what_is_missing([req], room=100) == ([], False)
    ranges = [(req, 10, 39), (req, 10, 16), (req, 15, 39)]
    assert made.short_of_kept(ranges) == [(req, 10, 22), (req, 10, 16), (req, 15, 39)]


def test_standalone_keeps_nothing_and_needs_nothing(target: Target) -> None:
    made, req = alone(target, standalone=True), Request("r", list(range(10)), list(range(50, 60)), 0, 20)
    result = target.forward_batch_generation(batch(3))
    assert target.asked == [None]
    assert result.logits_output.hidden_states is not None
    open_gap(req, 10)
    assert made.what_is_missing([req], room=100) == ([(req, 10, 19)], False)


def test_a_fault_is_told_once_and_then_nothing_is_kept(target: Target, mocker: MockerFixture) -> None:
    report = MagicMock()
    made, req = alone(target, report=report), Request("r", list(range(10)), list(range(50, 60)), 0, 20)
    mocker.patch.object(made.kept, "keep", side_effect=RuntimeError("out of memory"))
    for _ in range(2):
        target.forward_batch_generation(batch(3))
    assert report.call_count == 1
    assert target.asked == [HiddenMode.FULL] * 2, "the graphs hold hidden states, whether they are kept or not"
    open_gap(req, 10)
    assert made.what_is_missing([req], room=100) == ([], False)
    assert made.short_of_kept([(req, 10, 19)]) == [(req, 10, 19)]


def test_a_device_without_room_for_the_budget_is_a_refusal(target: Target, mocker: MockerFixture) -> None:
    mocker.patch.object(torch, "empty", side_effect=torch.OutOfMemoryError("CUDA out of memory."))
    device = SimpleNamespace(mem_get_info=lambda device: (300 * 2**20 + 5, 80 * 2**30))
    mocker.patch.object(torch, "get_device_module", return_value=device)
    with pytest.raises(ConfigError) as caught:
        alone(target)
    sentence = str(caught.value)
    assert sentence.startswith("--specswitch-draft-kv-budget asks for 1 MiB ")
    assert "only 300 MiB free" in sentence
    assert "--mem-fraction-static" in sentence
    assert sentence.rstrip(".").count(". ") == 0
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("algorithm", "named"),
    [("NGRAM", "no draft model"), ("STANDALONE", "no hidden states"), ("EAGLE3", "--enable-return-hidden-states")],
)
def test_a_budget_that_would_keep_nothing_is_refused(mocker: MockerFixture, algorithm: str, named: str) -> None:
    module = SimpleNamespace(unsupported=lambda arguments: None)
    mocker.patch.object(build, "_module", return_value=module)
    arguments = SimpleNamespace(
        speculative_algorithm=algorithm, enable_return_hidden_states=True, disable_overlap_schedule=False
    )
    sentence = build.refusal(MagicMock(), arguments, SwitchConfig(draft_kv_budget=64))
    assert sentence is not None
    assert named in sentence
    assert sentence.startswith("--specswitch-draft-kv-budget")
    assert sentence.endswith(".")
    assert build.refusal(MagicMock(), arguments, SwitchConfig()) is None


def test_a_forward_is_begun_earlier_by_what_a_request_has_put_out_itself() -> None:
    module = importlib.import_module("specswitch.engine.draft_alone")
    few, many, cached, cold = (
        Request("few", [1, 2, 3], [5] * 20, 1),
        Request("many", [1], [5] * 40, 2),
        Request("cached", [1], [5] * 40, 3),
        Request("cold", [1], [5] * 200, 4, sampling_params=SimpleNamespace(max_new_tokens=201)),
    )
    cached.kv.cache_protected_len = 38
    open_gap(few, 5)
    open_gap(cold, 30)  # with one token to go its gap stays open
    ranges = [(few, 5, 22), (many, 40, 41), (cached, 40, 41), (cold, 200, 201)]
    assert module.begun_earlier(ranges, 0) == ranges
    assert module.begun_earlier(ranges, 1) == [(few, 4, 22), *ranges[1:]]
    assert module.begun_earlier(ranges, 2 + 39 + 2) == [(few, 3, 22), (many, 1, 41), (cached, 38, 41), ranges[3]]
    assert module.begun_earlier(ranges, 2 + 39 + 3) == ranges
