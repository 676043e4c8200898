"""The real scheduler on the CPU, without specswitch: every mode answers as plain decode does, and its checks bite."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from tokenizers import Tokenizer

from specswitch.cpu_engine import inprocess
from specswitch.cpu_engine.inprocess import InProcessScheduler, Output
from specswitch.cpu_engine.prompts import PROMPTS
from specswitch.cpu_engine.releases import DEFAULT_MODELS, SpeculativeMode, installed_release

pytestmark = pytest.mark.real

NEW_TOKENS = 48
RELEASE = installed_release()
TOKENIZER = Tokenizer.from_file(str(DEFAULT_MODELS / "target" / "tokenizer.json"))


@dataclass(frozen=True)
class Case:
    mode: SpeculativeMode
    overlap: bool
    page_size: int

    def __str__(self) -> str:
        return f"{self.mode.name}-{'overlap' if self.overlap else 'sync'}-page{self.page_size}"

    def open(self, **options: Any) -> InProcessScheduler:
        return InProcessScheduler(self.mode.name, overlap=self.overlap, page_size=self.page_size, **options)


def every_case() -> list[Case]:
    return [
        Case(mode, overlap, page_size)
        for mode in RELEASE.modes.values()
        for overlap in ((False, True) if mode.overlap is None else (mode.overlap,))
        for page_size in ((1, 16) if mode.paged else (1,))
    ]


def case(name: str, *, overlap: bool, page_size: int = 1) -> Case:
    return Case(RELEASE.mode(name), overlap, page_size)


PLAIN = next(c for c in every_case() if not c.mode.arguments and not c.overlap)
SPECULATIVE = next(c for c in every_case() if c.mode.arguments.get("speculative_eagle_topk") == 1)
OVERLAP = next(c for c in every_case() if c.mode.arguments.get("speculative_eagle_topk") == 1 and c.overlap)
TREE = next(c for c in every_case() if c.mode.arguments.get("speculative_eagle_topk") == 4)


def prompt(index: int) -> list[int]:
    return TOKENIZER.encode(PROMPTS[index]).ids


def greedy(chosen: Case) -> dict[str, list[int]]:
    with chosen.open() as scheduler:
        assert scheduler.overlap == chosen.overlap
        assert scheduler.worker == (chosen.mode.worker or "TpModelWorker")
        launched = []
        for index in range(5):
            scheduler.add(str(index), prompt(index), NEW_TOKENS + index)
            launched.append(scheduler.step())
        launched += [scheduler.step() for _ in range(3)]
        assert launched[0].forward_mode == "EXTEND"
        assert launched[-1].forward_mode == "DECODE"
        assert launched[-1].batch_size == 5
        assert {turn.speculative for turn in launched} == {bool(chosen.mode.arguments)}
        scheduler.run_until_idle()
        return scheduler.output_ids()


@cache
def plain_greedy() -> dict[str, list[int]]:
    return greedy(PLAIN)


@pytest.mark.parametrize("chosen", every_case(), ids=str)
def test_every_mode_answers_as_plain_decode(chosen: Case) -> None:
    """... through the worker and the loop that the table of releases names."""
    answers = greedy(chosen)
    assert [len(answers[str(index)]) for index in range(5)] == [NEW_TOKENS + index for index in range(5)]
    assert answers == plain_greedy()


@cache
def features(chosen: Case) -> dict[str, Output]:
    """One request per feature, an abort and a retraction of all on the way."""
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["Ann", "Bob"]}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    stop_token = plain_greedy()["1"][20]
    with chosen.open(chunked_prefill_size=64, constrained_json_disable_any_whitespace=True) as scheduler:
        scheduler.add("json", prompt(5), 60, ignore_eos=False, json_schema=json.dumps(schema))
        scheduler.add("logprobs", prompt(0), 30, return_logprob=True)
        scheduler.add("stop", prompt(1), 60, ignore_eos=False, stop_token_ids=[stop_token])
        scheduler.add("long", (prompt(9) * 4)[:300], 12)
        scheduler.add("penalty", prompt(2), 24, frequency_penalty=0.5)
        scheduler.add("gone", prompt(3), 90)
        for _ in range(9):
            scheduler.step()
        scheduler.abort("gone")
        scheduler.step()
        scheduler.pause_retract()
        scheduler.run_until_idle()
        return dict(scheduler.outputs())


@pytest.mark.parametrize("chosen", [PLAIN, SPECULATIVE, OVERLAP, TREE], ids=str)
def test_features(chosen: Case) -> None:
    outputs, plain = features(chosen), features(PLAIN)

    answer = json.loads(TOKENIZER.decode(outputs["json"].output_ids))
    assert answer["name"] in ("Ann", "Bob")
    assert 0 <= answer["age"] <= 99
    assert outputs["json"].finish_reason is not None
    assert outputs["json"].finish_reason["type"] == "stop"

    assert outputs["logprobs"].logprob_ids == outputs["logprobs"].output_ids
    assert outputs["logprobs"].logprobs == pytest.approx(plain["logprobs"].logprobs, abs=1e-4)

    stop = outputs["stop"].finish_reason
    assert stop is not None
    assert stop["type"] == "stop"
    assert outputs["stop"].output_ids.count(stop["matched"]) == 1

    gone = outputs["gone"].finish_reason
    assert gone is not None
    assert gone["type"] == "abort"
    assert 0 < len(outputs["gone"].output_ids) < 90

    # SGLang's own verification of a tree applies penalties differently from plain decode
    compared = ["json", "logprobs", "stop", "long"] + (["penalty"] if chosen is not TREE else [])
    assert {rid: outputs[rid].output_ids for rid in compared} == {rid: plain[rid].output_ids for rid in compared}


@pytest.mark.parametrize("chosen", [PLAIN, SPECULATIVE, TREE], ids=str)
def test_a_leak_while_busy_is_found_in_that_turn(chosen: Case) -> None:
    with chosen.open() as scheduler:
        scheduler.add("a", prompt(0), 60)
        for _ in range(4):
            scheduler.step()
        scheduler.scheduler.token_to_kv_pool_allocator.alloc(2)
        with pytest.raises(AssertionError, match="Leak"):
            scheduler.step()


def test_a_leak_is_found_when_idle() -> None:
    with PLAIN.open(checks=False) as scheduler:
        scheduler.add("a", prompt(0), 4)
        scheduler.run_until_idle()
        assert scheduler.free_slots() == scheduler.total_slots
        scheduler.scheduler.token_to_kv_pool_allocator.alloc(2)
        with pytest.raises(ValueError, match="leak"):
            scheduler.step()


@pytest.mark.parametrize("chosen", [c for c in every_case() if c.mode is PLAIN.mode and c.page_size == 1], ids=str)
def test_a_step_is_one_turn(chosen: Case, mocker: Any) -> None:
    with chosen.open() as scheduler:
        chose = mocker.spy(scheduler.scheduler, "get_next_batch_to_run")
        scheduler.add("a", prompt(0), 4)
        for turn in range(1, 8):
            scheduler.step()
            assert chose.call_count == turn


def test_after_an_exception_the_scheduler_is_dead_and_another_can_be_built() -> None:
    with PLAIN.open() as scheduler:

        def fail(*args: object, **kwargs: object) -> None:
            raise ZeroDivisionError("on purpose")

        scheduler.scheduler.run_batch = fail
        scheduler.add("a", prompt(0), 4)
        with pytest.raises(ZeroDivisionError, match="on purpose"):
            scheduler.step()
        with pytest.raises(RuntimeError, match="has ended"):
            scheduler.step()
    assert greedy(PLAIN) == plain_greedy()


def test_one_scheduler_at_a_time() -> None:
    with PLAIN.open(), pytest.raises(RuntimeError, match="another InProcessScheduler is open"):
        PLAIN.open()
    assert inprocess.InProcessScheduler._open is None


def test_a_client_that_leaves_before_its_turn_never_runs() -> None:
    with PLAIN.open(max_running_requests=1) as scheduler:
        scheduler.add("first", prompt(0), 20)
        scheduler.add("second", prompt(1), 20)
        scheduler.step()
        scheduler.abort("second")
        scheduler.run_until_idle()
        outputs = scheduler.outputs()
    assert outputs["first"].output_ids == plain_greedy()["0"][:20]
    assert outputs["second"].output_ids == []
    assert outputs["second"].finished
