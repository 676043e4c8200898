"""Forced switches on every speculative server: the plain server's tokens, and a pool without a lost slot."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from cases import cases
from switching import (
    Outcome,
    Request,
    Scenario,
    assert_same_answers,
    at_random,
    every,
    open_switched,
    plain_answers,
    run,
    until_pressed,
    workload,
)

from specswitch.cpu_engine.inprocess import InProcessScheduler, Output
from specswitch.signals import Mode

pytestmark = pytest.mark.real

ALL_MODES = frozenset(Mode)
VOCAB_SIZE = 250
SMALL_POOL = {1: 320, 16: 384}
"""KV slots by page size: too few for the requests of a scenario, enough for any one of them."""
EAGER_ADMISSION = 0.05
"""``schedule_conservativeness`` at which SGLang admits requests without room for what they will generate."""
LEAST_SWITCHES = 200

_switches: Counter[str] = Counter()


MAY_END_EARLY = {"ignore_eos": False}
"""SGLang 0.5.13 and later admit a request that cannot end early only if all it may generate fits the pool."""


def in_every_mode() -> list[Request]:
    """Two requests at the start, and two that arrive in each mode."""
    requests = workload(seed=1, count=8, vocab_size=VOCAB_SIZE, max_new_tokens=48, prefix="arrives-")
    modes = [None, None, *Mode, *Mode]
    return [
        replace(request, mode=mode, turn=0, options=MAY_END_EARLY)
        for request, mode in zip(requests, modes, strict=True)
    ]


def at_once(mode: Mode) -> list[Request]:
    requests = workload(seed=2, count=6, vocab_size=VOCAB_SIZE, max_new_tokens=56, prefix=f"pressed-{mode.value}-")
    return [replace(request, turn=0, options=MAY_END_EARLY) for request in requests]


def one_by_one(prefix: str) -> list[Request]:
    return workload(seed=3, count=6, vocab_size=VOCAB_SIZE, max_new_tokens=48, prefix=prefix)


@pytest.fixture(scope="module")
def plain() -> dict[str, Output]:
    pressed = [*at_once(Mode.SPECULATIVE), *at_once(Mode.PLAIN)]
    return plain_answers([*in_every_mode(), *pressed, *one_by_one("random-"), *one_by_one("cold-")])


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, plain: dict[str, Output]) -> Iterator[InProcessScheduler]:
    """One scheduler for a case's scenarios, so that each starts with what the last left in the prefix cache."""
    case, draft_kv = request.param
    with open_switched(
        **case.options,
        flags=["--specswitch-draft-kv", draft_kv],
        max_total_tokens=SMALL_POOL[case.page_size],
        schedule_conservativeness=EAGER_ADMISSION,
        decode_log_interval=5,
    ) as opened:
        yield opened


def on_each(draft_kv: str) -> pytest.MarkDecorator:
    """Run a test on each server whose draft KV is brought back in this way."""
    servers = [(case, draft_kv) for case in cases() if draft_kv == "catch-up" or case.has_draft_model]
    return pytest.mark.parametrize("server", servers, ids=lambda chosen: f"{chosen[0]}-{chosen[1]}", indirect=True)


def drawn(seed: int, *turns: int) -> Iterator[int]:
    dice = random.Random(seed)
    while True:
        yield dice.choice(turns)


@on_each("catch-up")
def test_every_7_turns_with_arrivals_aborts_and_retractions_in_each_mode(
    server: InProcessScheduler, plain: dict[str, Output]
) -> None:
    stays = drawn(5, 1, 2, 3)
    outcome = run(
        server,
        Scenario(
            in_every_mode(),
            every(7),
            draining_turns=lambda: next(stays),
            abort_in=ALL_MODES,
            retract_in=ALL_MODES,
        ),
    )
    _switches[server.mode.name] += outcome.switches
    assert_same_answers(outcome, plain)
    assert set(outcome.arrived_in) == ALL_MODES
    assert set(outcome.prefilled_in) == ALL_MODES
    assert set(outcome.aborted.values()) == ALL_MODES
    assert set(outcome.paused_in) == ALL_MODES


@on_each("catch-up")
def test_at_random_turns(server: InProcessScheduler, plain: dict[str, Output]) -> None:
    stays = drawn(6, 0, 0, 1, 2)
    outcome = run(server, Scenario(one_by_one("random-"), at_random(7, 0.3), draining_turns=lambda: next(stays)))
    _switches[server.mode.name] += outcome.switches
    assert_same_answers(outcome, plain)
    assert outcome.switches >= 4


@on_each("catch-up")
@pytest.mark.parametrize("mode", [Mode.SPECULATIVE, Mode.PLAIN], ids=lambda mode: mode.value)
def test_pool_pressure(mode: Mode, server: InProcessScheduler, plain: dict[str, Output]) -> None:
    outcome = Outcome()
    run(server, Scenario(at_once(mode), until_pressed(outcome, mode, then=every(7))), outcome)
    _switches[server.mode.name] += outcome.switches
    assert_same_answers(outcome, plain)
    assert outcome.pressed_in[mode]


@on_each("cold")
def test_cold_returns_at_random_turns(server: InProcessScheduler, plain: dict[str, Output]) -> None:
    outcome = run(server, Scenario(one_by_one("cold-"), at_random(8, 0.3), abort_in=ALL_MODES))
    _switches[server.mode.name] += outcome.switches
    assert_same_answers(outcome, plain)
    assert outcome.switches >= 4
    assert outcome.status["last_transition"]["tokens_caught_up"] == 0


def test_enough_switches(capsys: pytest.CaptureFixture[str]) -> None:
    if set(_switches) != {case.mode for case in cases()}:
        pytest.skip("counts only when the whole file runs")
    with capsys.disabled():
        print(f"\n{_switches.total()} switches: {dict(_switches)}")
    assert _switches.total() >= LEAST_SWITCHES
