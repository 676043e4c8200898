"""Drive the real scheduler through forced switches, and compare every answer with a plain server's.

A :class:`Scenario` says when to switch and what else happens; :func:`run` steps the scheduler turn by turn, with
specswitch attached by its own plugin entry point, checks the invariants and SGLang's pools after every turn, and
returns what the clients received.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specswitch import config as configuration
from specswitch.cpu_engine import environment
from specswitch.cpu_engine.inprocess import InProcessScheduler, Output
from specswitch.policy import Wish
from specswitch.signals import LoadSample, Mode


@dataclass(frozen=True)
class Request:
    rid: str
    input_ids: Sequence[int]
    max_new_tokens: int
    turn: int = 0
    """Turn at which it arrives."""
    sampling: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Scenario:
    requests: Sequence[Request]
    wish: Callable[[int, Mode], Mode]
    """The mode wanted at a turn, given the mode the machine is in."""
    draining_turns: Callable[[], int] = lambda: 0
    """Turns to stay in DRAINING beyond what the engine needs."""
    abort_in: frozenset[Mode] = frozenset()
    """Modes in each of which one running request is aborted."""
    retract_in: frozenset[Mode] = frozenset()
    """Modes in each of which all running requests are retracted by a pause."""
    max_turns: int = 4000


@dataclass
class Outcome:
    outputs: dict[str, Output]
    aborted: dict[str, Mode] = field(default_factory=dict)
    paused_in: list[Mode] = field(default_factory=list)
    retracted_in: Counter[Mode] = field(default_factory=Counter)
    """Requests that went back to the queue, by the mode they were in."""
    prefilled_in: Counter[Mode] = field(default_factory=Counter)
    switches: int = 0
    """Times that PLAIN or SPECULATIVE was entered from the other."""
    turns: int = 0
    steps: Counter[str] = field(default_factory=Counter)
    """Turns by what was launched in them: "PLAIN plain", "SPECULATIVE spec", "idle"..."""
    status: dict[str, Any] = field(default_factory=dict)


class Scripted:
    """A policy that wishes for what the test says, with a settable stay in DRAINING."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.turn = 0
        self.extra = 0

    def __call__(self, sample: LoadSample) -> Wish | None:
        wanted = self.scenario.wish(self.turn, sample.mode)
        return Wish(wanted, f"turn {self.turn}")


def open_switched(mode: str, *, flags: Sequence[str] = (), **options: Any) -> InProcessScheduler:
    """A scheduler with specswitch attached through its flags, as in a server."""
    _load_plugin()
    return InProcessScheduler(mode, flags=[configuration.ENABLE_FLAG, *flags], **options)


def open_plain(mode: str, **options: Any) -> InProcessScheduler:
    """A scheduler without specswitch, in a process that may open a switched one later."""
    _load_plugin()
    return InProcessScheduler(mode, **options)


def _load_plugin() -> None:
    """Let specswitch register its hooks; SGLang loads plugins once per process."""
    environment.activate(strict=True)
    os.environ[configuration.ENABLE_VARIABLE] = "1"
    from sglang.srt.plugins import load_plugins

    load_plugins()
    os.environ.pop(configuration.ENABLE_VARIABLE)


def run(server: InProcessScheduler, scenario: Scenario) -> Outcome:
    """Play a scenario on an open scheduler; with a plain one nothing but the requests happens."""
    outcome = Outcome(outputs={})
    switch = getattr(server.scheduler, "specswitch", None)
    script = Scripted(scenario)
    if switch is not None:
        switch.policy = script
        _stretch_draining(switch, scenario)
    _count_retractions(server, switch, outcome)
    arriving = sorted(scenario.requests, key=lambda request: request.turn)
    to_abort, to_pause = set(scenario.abort_in), set(scenario.retract_in)
    while arriving or not server.idle:
        while arriving and arriving[0].turn <= script.turn:
            request = arriving.pop(0)
            server.add(request.rid, request.input_ids, request.max_new_tokens, **request.sampling)
        if switch is not None:
            _disturb(server, switch.machine.mode, to_abort, to_pause, outcome)
        before = switch.machine.mode if switch is not None else None
        turn = server.step()
        script.turn += 1
        if switch is not None:
            now = switch.machine.mode
            check_invariants(server, switch)
            outcome.switches += {before, now} == {Mode.PLAIN, Mode.SPECULATIVE} or (
                before is Mode.DRAINING and now is Mode.PLAIN
            )
            kind = "idle" if turn.forward_mode is None else f"{turn.forward_mode} {'spec' if turn.speculative else 'plain'}"
            outcome.steps[f"{now.value} {kind}"] += 1
            if turn.forward_mode == "EXTEND":
                outcome.prefilled_in[now] += 1
            assert not switch.faulted, switch.status()["fault"]
        assert script.turn < scenario.max_turns, "stuck"
    server.run_until_idle()
    outcome.outputs = dict(server.outputs())
    outcome.turns = script.turn
    if switch is not None:
        outcome.status = switch.status()
    return outcome


def check_invariants(server: InProcessScheduler, switch: Any) -> None:
    """The invariants of docs/design.md that can be told between turns."""
    scheduler, page = server.scheduler, server.scheduler.page_size
    batch = scheduler.running_batch
    if switch.machine.mode is Mode.PLAIN and not batch.is_empty() and batch.spec_algorithm.is_none():
        assert batch.spec_info is None
        if batch.out_cache_loc is not None and batch.forward_mode.is_decode():
            assert len(batch.out_cache_loc) == len(batch.reqs)
        for req in batch.reqs:
            kv = getattr(req, "kv", req)
            if not req.finished() and getattr(kv, "holds_kv", True):
                committed, allocated = kv.kv_committed_len, kv.kv_allocated_len
                assert committed <= allocated <= -(-committed // page) * page, (req.rid, committed, allocated)


def assert_same_answers(outcome: Outcome, plain: Mapping[str, Output]) -> None:
    """Every answer equals the plain server's; an aborted one is a prefix of it."""
    for rid, output in outcome.outputs.items():
        expected = plain[rid].output_ids
        if rid in outcome.aborted:
            assert output.finish_reason is not None, rid
            expected = expected[: len(output.output_ids)]
        assert output.output_ids == expected, (
            f"{rid} differs from the plain server's at token {_first_difference(output.output_ids, expected)}"
            f" of {len(expected)}"
        )


def every(turns: int) -> Callable[[int, Mode], Mode]:
    """Wish for the other mode every so many turns."""
    return lambda turn, mode: Mode.PLAIN if (turn // turns) % 2 else Mode.SPECULATIVE


def at_random(seed: int, probability: float) -> Callable[[int, Mode], Mode]:
    """Change the wish at each turn with this probability."""
    dice, wanted = random.Random(seed), [Mode.SPECULATIVE]

    def wish(turn: int, mode: Mode) -> Mode:
        if dice.random() < probability:
            wanted[0] = Mode.PLAIN if wanted[0] is Mode.SPECULATIVE else Mode.SPECULATIVE
        return wanted[0]

    return wish


def workload(seed: int, count: int, vocab_size: int, max_new_tokens: int = 60) -> list[Request]:
    """Requests of unequal lengths that arrive one after another."""
    dice = random.Random(seed)
    requests, turn = [], 0
    for index in range(count):
        length = dice.choice([3, 5, 9, 16, 17, 33, 40, 60])
        ids = [1] + [dice.randrange(4, vocab_size) for _ in range(length - 1)]
        requests.append(Request(f"r{index}", ids, max_new_tokens - 5 * (index % 4), turn))
        turn += dice.randrange(0, 9)
    return requests


def _stretch_draining(switch: Any, scenario: Scenario) -> None:
    engine, left = switch.engine, [0]
    drained, start_drain = engine.drained, engine.start_drain

    def start() -> None:
        left[0] = scenario.draining_turns()
        start_drain()

    def is_drained() -> bool:
        if not drained():
            return False
        left[0] -= 1
        return left[0] < 0

    engine.start_drain, engine.drained = start, is_drained


def _count_retractions(server: InProcessScheduler, switch: Any, outcome: Outcome) -> None:
    release_req = "reset_for_retract"
    from sglang.srt.managers.schedule_batch import Req

    original = getattr(Req, release_req)
    if getattr(original, "counted", False):
        original = original.original

    def counted(req: Any) -> Any:
        if switch is not None:
            outcome.retracted_in[switch.machine.mode] += 1
        return original(req)

    counted.counted, counted.original = True, original  # type: ignore[attr-defined]
    setattr(Req, release_req, counted)


def _disturb(
    server: InProcessScheduler, mode: Mode, to_abort: set[Mode], to_pause: set[Mode], outcome: Outcome
) -> None:
    running = [req for req in server.scheduler.running_batch.reqs if not req.finished()]
    if mode in to_abort and len(running) >= 3 and server.turns > 10:
        to_abort.discard(mode)
        outcome.aborted[running[1].rid] = mode
        server.abort(running[1].rid)
    elif mode in to_pause and len(running) >= 2 and server.turns > 20:
        to_pause.discard(mode)
        outcome.paused_in.append(mode)
        server.pause_retract()


def _first_difference(got: Sequence[int], expected: Sequence[int]) -> int:
    for index, (left, right) in enumerate(zip(got, expected)):
        if left != right:
            return index
    return min(len(got), len(expected))
