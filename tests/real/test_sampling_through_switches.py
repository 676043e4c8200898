"""What a request asks of sampling holds through switches both ways, as on a server that never speculates."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from cases import Case, typical_cases
from switching import Request, Scenario, assert_same_answers, every, open_plain, open_switched, run, workload

from specswitch.cpu_engine.inprocess import InProcessScheduler, Output
from specswitch.cpu_engine.releases import installed_release
from specswitch.engine.hooks import InstanceHooks
from specswitch.signals import Mode

pytestmark = pytest.mark.real

VOCAB_SIZE = 250
OPTIONS = {"constrained_json_disable_any_whitespace": True, "enable_return_hidden_states": True}
PLAIN_FOR = ["--specswitch-mode", "speculative", "--specswitch-dwell-steps", "1"]
PLAIN_FOR += ["--specswitch-plain-for", "penalties,min_p"]

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "trade": {"enum": ["baker", "smith", "carpenter"]},
            "tools": {"type": "array", "items": {"enum": ["saw", "oven", "anvil"]}, "minItems": 3, "maxItems": 3},
        },
        "required": ["name", "trade", "tools"],
        "additionalProperties": False,
    }
)


def requests(prefix: str, count: int = 4, new_tokens: int = 40, **options: Any) -> list[Request]:
    """Requests with these options, and one without any."""
    made = workload(seed=21, count=count + 1, vocab_size=VOCAB_SIZE, max_new_tokens=new_tokens, prefix=f"{prefix}-")
    return [replace(request, options=options) for request in made[:-1]] + made[-1:]


def together(made: list[Request], turn: int = 0, mode: Mode | None = None) -> list[Request]:
    """All of them in one prefill, in ``mode``.

    SGLang's overlap loop feeds its penalizers the last token that it knows at each launch (0.5.12
    ``ScheduleBatch.prepare_for_decode``): a prefill in between makes it count one token twice and another never, so
    that a plain server's own answers depend on when its neighbours arrive.
    """
    return [replace(request, mode=mode, turn=turn) for request in made]


PENALTIES: dict[str, dict[str, Any]] = {
    "frequency": {"frequency_penalty": 0.9},
    "presence": {"presence_penalty": 1.1},
    "repetition": {"repetition_penalty": 1.4},
    "all": {"frequency_penalty": 0.4, "presence_penalty": 0.3, "repetition_penalty": 1.2, "min_new_tokens": 6},
}
FAINT = {"frequency_penalty": 2**-20, "presence_penalty": 2**-19, "repetition_penalty": 1 + 2**-20}
"""Penalties that are counted and change no token, so that a speculating server puts out what a plain one does."""

LOGPROBS = requests("logprobs", return_logprob=True)
BIASED = requests("biased", logit_bias={"17": 3.5, "99": -100.0, "201": 2.0})
NO_CHOICE = requests("min-p", min_p=1.0, temperature=1.5)
"""Hot sampling that ``min_p`` leaves one token to choose from."""
STRUCTURED = requests("structured", count=3, new_tokens=120, json_schema=SCHEMA, ignore_eos=False)
HIDDEN = together(requests("hidden", new_tokens=30, return_hidden_states=True)[:-1], 8, Mode.PLAIN)
FAINTLY_PENALISED = together(requests("faint", **FAINT, min_new_tokens=4))
PENALISED = {name: together(requests(f"penalised-{name}", **options)) for name, options in PENALTIES.items()}
BORN_PLAIN = {
    name: together(requests(f"born-plain-{name}", **options), 8, Mode.PLAIN) for name, options in PENALTIES.items()
}


def stopping(plain: dict[str, Output], server: Any) -> list[Request]:
    """The requests of LOGPROBS, each stopped by a token or a string that its known answer holds in the middle."""
    stopped = []
    for index, request in enumerate(LOGPROBS):
        ids = plain[request.rid].output_ids
        text = server.tokenizer.decode(ids)
        by_token = {"stop_token_ids": [ids[len(ids) // 2]], "ignore_eos": False}
        by_string = {"stop": [text[len(text) // 2 :][:4]], "ignore_eos": False}
        stopped += [
            replace(request, rid=f"stop-token-{index}", options=by_token),
            replace(request, rid=f"stop-string-{index}", options=by_string),
        ]
    return stopped


@dataclass
class Reference:
    """What a plain server did."""

    outputs: dict[str, Output]
    stopped: list[Request]
    penalties: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    """The state of each penalizer when a request's step at that length was launched."""


def record_penalties(server: InProcessScheduler, hooks: InstanceHooks) -> dict[tuple[str, int], dict[str, Any]]:
    """Fill the dictionary that is returned with what the penalizers hold at each plain decode step, by request and
    length."""
    seen: dict[tuple[str, int], dict[str, Any]] = {}

    def run_batch(original: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if batch.forward_mode.is_decode() and batch.spec_algorithm.is_none():
            penalizers = batch.sampling_info.penalizer_orchestrator.penalizers.values()
            for row, (req, length) in enumerate(zip(batch.reqs, batch.seq_lens_cpu.tolist(), strict=True)):
                seen[req.rid, length] = {
                    f"{type(penalizer).__name__}.{name}": getattr(penalizer, name)[row].clone()
                    for penalizer in penalizers
                    if penalizer.is_prepared()
                    for name in vars(penalizer)
                    if name.startswith("cumulated_") or name == "len_output_tokens"
                }
        return original(batch, *args, **kwargs)

    hooks.around(server.scheduler, "run_batch", run_batch)
    return seen


def reference(overlap: bool) -> Reference:
    modes = installed_release().modes
    options = {"mode": "plain", "overlap": overlap} if modes["plain"].overlap is None else {"mode": "plain"}
    if not overlap and "plain-no-overlap" in modes:
        options = {"mode": "plain-no-overlap"}
    hooks = InstanceHooks()
    with open_plain(**options, **OPTIONS) as server:
        outputs = run(server, Scenario([*LOGPROBS, *BIASED, *NO_CHOICE, *STRUCTURED])).outputs
        for penalised in (*PENALISED.values(), *BORN_PLAIN.values()):
            outputs |= run(server, Scenario(penalised)).outputs
        outputs |= run(server, Scenario(HIDDEN)).outputs
        stopped = stopping(outputs, server.scheduler)
        outputs |= run(server, Scenario(stopped)).outputs
        penalties = record_penalties(server, hooks)
        outputs |= run(server, Scenario(FAINTLY_PENALISED)).outputs
        hooks.remove_all()
    return Reference(outputs, stopped, penalties)


@pytest.fixture(scope="module")
def references() -> dict[bool, Reference]:
    return {overlap: reference(overlap) for overlap in (True, False)}


def chosen() -> list[tuple[Case, str]]:
    """Cases, and what ``--specswitch-plain-overlap`` says (of no effect but for a v1 worker)."""
    found = typical_cases()
    return [(case, "on") for case in found] + [(case, "off") for case in found if case.mode == "eagle-topk4-v1"]


@pytest.fixture(scope="module", params=chosen(), ids=lambda param: f"{param[0]}-plain-overlap-{param[1]}")
def server(
    request: pytest.FixtureRequest, references: dict[bool, Reference]
) -> Iterator[tuple[InProcessScheduler, Reference]]:
    case, plain_overlap = request.param
    flags = [*PLAIN_FOR, "--specswitch-plain-overlap", plain_overlap]
    with open_switched(**case.options, **OPTIONS, flags=flags) as opened:
        v1_with_overlap = opened.scheduler.specswitch.engine.facts.path == "v1" and plain_overlap == "on"
        yield opened, references[opened.overlap or v1_with_overlap]


Server = tuple[InProcessScheduler, Reference]


def plain_from_turn_5(turn: int, mode: Mode) -> Mode:
    return Mode.PLAIN if turn > 4 else Mode.SPECULATIVE


def test_logprobs(server: Server) -> None:
    scheduler, plain = server
    outcome = run(scheduler, Scenario(LOGPROBS, every(5)))
    assert_same_answers(outcome, plain.outputs)
    assert outcome.switches >= 4
    for request in LOGPROBS[:-1]:
        output = outcome.outputs[request.rid]
        assert output.logprob_ids == output.output_ids
        assert output.logprobs == pytest.approx(plain.outputs[request.rid].logprobs, abs=1e-4)


def test_stop_tokens_and_strings(server: Server) -> None:
    scheduler, plain = server
    outcome = run(scheduler, Scenario(plain.stopped, every(5)))
    assert_same_answers(outcome, plain.outputs)
    assert outcome.switches >= 4
    for request in plain.stopped:
        expected = plain.outputs[request.rid].finish_reason
        assert expected is not None
        assert expected["type"] == "stop"
        assert outcome.outputs[request.rid].finish_reason == expected


def test_logit_bias(server: Server) -> None:
    scheduler, plain = server
    outcome = run(scheduler, Scenario(BIASED, every(5)))
    assert_same_answers(outcome, plain.outputs)
    assert outcome.switches >= 4


def test_structured_output(server: Server) -> None:
    scheduler, plain = server
    outcome = run(scheduler, Scenario(STRUCTURED, every(5)))
    assert_same_answers(outcome, plain.outputs)
    assert outcome.switches >= 4
    for request in STRUCTURED[:-1]:
        text = scheduler.scheduler.tokenizer.decode(outcome.outputs[request.rid].output_ids, skip_special_tokens=True)
        assert set(json.loads(text)) == {"name", "trade", "tools"}


def test_min_p_decoded_plain(server: Server) -> None:
    scheduler, plain = server
    outcome = run(scheduler, Scenario(NO_CHOICE))
    assert_same_answers(outcome, plain.outputs)


@pytest.mark.parametrize("name", PENALTIES)
def test_penalties_decoded_plain(name: str, server: Server) -> None:
    scheduler, plain = server
    outcome = run(scheduler, Scenario(PENALISED[name]))
    assert_same_answers(outcome, plain.outputs)


@pytest.mark.parametrize("name", PENALTIES)
def test_penalties_of_requests_that_arrive_while_plain(name: str, server: Server) -> None:
    scheduler, plain = server
    running = [replace(LOGPROBS[0], rid=f"runs-before-{name}"), *BORN_PLAIN[name]]
    outcome = run(scheduler, Scenario(running, plain_from_turn_5))
    assert_same_answers(outcome, plain.outputs | {running[0].rid: plain.outputs[LOGPROBS[0].rid]})
    assert outcome.switches >= 1


def test_hidden_states_of_requests_that_arrive_while_plain(server: Server) -> None:
    scheduler, plain = server
    outcome = run(scheduler, Scenario(HIDDEN, plain_from_turn_5))
    assert_same_answers(outcome, plain.outputs)
    for rid, output in outcome.outputs.items():
        expected = plain.outputs[rid].hidden_states[1:]
        assert len(output.hidden_states) == len(output.output_ids)
        for row, expected_row in zip(output.hidden_states[1:], expected, strict=True):
            assert row == pytest.approx(expected_row, abs=1e-4)


def test_penalty_state_at_every_plain_step(server: Server) -> None:
    scheduler, plain = server
    hooks, prefix = InstanceHooks(), f"{len(scheduler.outputs())}-"
    faintly_penalised = [replace(request, rid=prefix + request.rid) for request in FAINTLY_PENALISED]
    seen = record_penalties(scheduler, hooks)
    try:
        outcome = run(scheduler, Scenario(faintly_penalised, every(5)))
    finally:
        hooks.remove_all()
    assert_same_answers(outcome, {prefix + rid: output for rid, output in plain.outputs.items()})
    assert len(seen) > 10
    for (rid, length), state in seen.items():
        at = (rid.removeprefix(prefix), length)
        expected = plain.penalties[at]
        assert state.keys() >= expected.keys()
        for name, value in expected.items():
            assert (state[name] == value).all(), f"{at}: {name} is not the plain server's"


def test_leaving_out_the_rebuilt_penalties_is_noticed(server: Server) -> None:
    scheduler, _ = server
    hooks = InstanceHooks()
    hooks.replace(scheduler.scheduler.specswitch.engine, "_rebuild_penalties", lambda *args, **kwargs: None)
    try:
        with pytest.raises(AssertionError, match="is not the plain server's"):
            test_penalty_state_at_every_plain_step(server)
    finally:
        hooks.remove_all()
