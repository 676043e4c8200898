"""Drive the real scheduler through forced switches, and compare every answer with a plain server's.

A :class:`Scenario` says when to switch and what else happens; :func:`run` steps the scheduler turn by turn, with
specswitch attached by its own plugin entry point, checks the invariants and SGLang's pools after every turn, and
returns what the clients received.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from draft_cover import DraftCover

from specswitch import config as configuration
from specswitch.cpu_engine import environment
from specswitch.cpu_engine.inprocess import InProcessScheduler, Output
from specswitch.engine import v2_compat
from specswitch.engine.hooks import InstanceHooks
from specswitch.policy import Wish
from specswitch.signals import LoadSample, Mode


@dataclass(frozen=True)
class Request:
    rid: str
    input_ids: Sequence[int]
    max_new_tokens: int
    turn: int = 0
    """The first turn at which it may arrive."""
    mode: Mode | None = None
    """The mode it waits for from then on; None: any."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of ``InProcessScheduler.add``."""


@dataclass(frozen=True)
class Scenario:
    requests: Sequence[Request]
    wish: Callable[[int, Mode], Mode] | None = None
    """The mode wanted at a turn, given the mode the machine is in; None: what the server's own policy wishes."""
    draining_turns: Callable[[], int] = lambda: 0
    """Turns to stay in DRAINING beyond what the engine needs."""
    abort_in: frozenset[Mode] = frozenset()
    """Modes in each of which one running request is aborted."""
    retract_in: frozenset[Mode] = frozenset()
    """Modes in each of which all running requests are retracted by a pause."""
    may_fault: bool = False
    """Whether a fault of specswitch is part of the play."""
    max_turns: int = 2000


@dataclass
class Outcome:
    outputs: dict[str, Output] = field(default_factory=dict)
    aborted: dict[str, Mode] = field(default_factory=dict)
    arrived_in: Counter[Mode] = field(default_factory=Counter)
    prefilled_in: Counter[Mode] = field(default_factory=Counter)
    """Prefills launched, by the mode they were launched in."""
    paused_in: Counter[Mode] = field(default_factory=Counter)
    """Requests retracted by a pause, by mode."""
    pressed_in: Counter[Mode] = field(default_factory=Counter)
    """Requests retracted because the pool was full, by mode."""
    switches: int = 0
    """Times that PLAIN or SPECULATIVE was entered from the other."""
    turns: int = 0
    steps: Counter[str] = field(default_factory=Counter)
    """Turns by what was launched in them: "PLAIN DECODE plain", "SPECULATIVE DECODE spec", "DRAINING idle"..."""
    status: dict[str, Any] = field(default_factory=dict)
    """The switch's state at the end, as in /server_info."""


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


def run(server: InProcessScheduler, scenario: Scenario, outcome: Outcome | None = None) -> Outcome:
    """Play a scenario on an open and idle scheduler; with a plain one nothing but the requests happens.

    ``outcome`` is filled while the scenario runs, so that its ``wish`` may go by it.
    """
    outcome = Outcome() if outcome is None else outcome
    with _attended(server, scenario, outcome) as player:
        player.play()
    outcome.outputs = {request.rid: server.outputs()[request.rid] for request in scenario.requests}
    return outcome


class _Player:
    """One run of a scenario."""

    def __init__(self, server: InProcessScheduler, scenario: Scenario, outcome: Outcome) -> None:
        self.server, self.scenario, self.outcome = server, scenario, outcome
        self.switch = getattr(server.scheduler, "specswitch", None)
        self.turn = 0
        self.pausing = False
        self._waiting = sorted(scenario.requests, key=lambda request: request.turn)
        self._to_abort, self._to_pause = set(scenario.abort_in), set(scenario.retract_in)
        self._cover = DraftCover(server.scheduler) if self.switch is not None else None
        self._just_returned = False
        """Whether nothing was launched since the return to SPECULATIVE but what completed it."""

    def policy(self, sample: LoadSample) -> Wish:
        """Wishes for what the scenario says."""
        assert self.scenario.wish is not None
        return Wish(self.scenario.wish(self.turn, sample.mode), f"turn {self.turn}")

    @property
    def mode(self) -> Mode | None:
        mode: Mode | None = None if self.switch is None else self.switch.machine.mode
        return mode

    def play(self) -> None:
        before = self._switches()
        while self._waiting or not self.server.idle:
            assert self.turn < self.scenario.max_turns, self._stuck()
            self._let_arrive()
            if self.switch is not None:
                self._disturb()
            self._turn()
        self.server.run_until_idle()
        self.outcome.turns = self.turn
        if self.switch is not None:
            self.outcome.status = self.switch.status()
            self.outcome.switches = self._switches() - before

    def _let_arrive(self) -> None:
        for request in list(self._waiting):
            if request.turn <= self.turn and (self.switch is None or request.mode in (None, self.mode)):
                self._waiting.remove(request)
                self.server.add(request.rid, request.input_ids, request.max_new_tokens, **request.options)
                if self.mode is not None:
                    self.outcome.arrived_in[self.mode] += 1

    def _turn(self) -> None:
        pressed = self.outcome.pressed_in.total()
        before = self.mode
        turn = self.server.step()
        self.turn += 1
        if turn.forward_mode is None:
            time.sleep(0.001)  # a grammar may be under way in a thread
        if self.switch is None:
            return
        now = self.mode
        assert self.scenario.may_fault or not self.switch.faulted, self.switch.status()["fault"]
        check_invariants(self.server, self.switch)
        if self._cover is not None and not self.switch.faulted:
            self._cover.check()
        returned = before is Mode.PLAIN and now is Mode.SPECULATIVE
        if returned or self._just_returned:
            assert self.outcome.pressed_in.total() == pressed, "the return to SPECULATIVE retracted requests"
        self._just_returned = returned or (self._just_returned and turn.forward_mode is None)
        kind = "idle" if turn.forward_mode is None else f"{turn.forward_mode} {'spec' if turn.speculative else 'plain'}"
        self.outcome.steps[f"{now.value} {kind}"] += 1
        if turn.forward_mode == "EXTEND":
            self.outcome.prefilled_in[now] += 1

    def _disturb(self) -> None:
        running = [req for req in self.server.scheduler.running_batch.reqs if not req.finished()]
        mode = self.mode
        if mode in self._to_abort and len(running) >= 3:
            self._to_abort.discard(mode)
            self.outcome.aborted[running[1].rid] = mode
            self.server.abort(running[1].rid)
        elif mode in self._to_pause and len(running) >= 2:
            self._to_pause.discard(mode)
            self.pausing = True
            self.server.pause_retract()
            self.pausing = False

    def _switches(self) -> int:
        if self.switch is None:
            return 0
        taken = self.switch.status()["transitions_by_kind"]
        return int(taken["ENTER_PLAIN"] + taken["RETURN"])

    def _stuck(self) -> str:
        scheduler = self.server.scheduler
        return (
            f"stuck in {self.mode}: {len(scheduler.waiting_queue)} waiting,"
            f" {len(scheduler.running_batch.reqs)} running, batch_is_full={scheduler.running_batch.batch_is_full}"
        )


@contextmanager
def _attended(server: InProcessScheduler, scenario: Scenario, outcome: Outcome) -> Iterator[_Player]:
    """The player, with the policy, the stay in DRAINING and the count of retractions in place for the duration."""
    player, hooks = _Player(server, scenario, outcome), InstanceHooks()
    switch = player.switch
    if switch is not None:
        if scenario.wish is not None:
            hooks.replace(switch, "policy", player.policy)
        _stretch_draining(switch.engine, scenario, hooks)
        _count_retractions(player, hooks)
    try:
        yield player
    finally:
        hooks.remove_all()


def _stretch_draining(engine: Any, scenario: Scenario, hooks: InstanceHooks) -> None:
    left = 0

    def start_drain(original: Callable[[], None]) -> None:
        nonlocal left
        left = scenario.draining_turns()
        original()

    def drained(original: Callable[[], bool]) -> bool:
        nonlocal left
        if not original():
            return False
        left -= 1
        return left < 0

    hooks.around(engine, "start_drain", start_drain)
    hooks.around(engine, "drained", drained)


def _count_retractions(player: _Player, hooks: InstanceHooks) -> None:
    from sglang.srt.managers.schedule_batch import Req

    reset = Req.reset_for_retract

    def reset_for_retract(req: Any, *args: Any, **kwargs: Any) -> Any:
        assert player.mode is not None
        outcome = player.outcome
        (outcome.paused_in if player.pausing else outcome.pressed_in)[player.mode] += 1
        return reset(req, *args, **kwargs)

    hooks.replace(Req, "reset_for_retract", reset_for_retract)


def check_invariants(server: InProcessScheduler, switch: Any) -> None:
    """The invariants of docs/design.md that can be told between turns."""
    census = switch.engine._census
    census.take()
    assert census.size == len(census.unfinished()), "the census has missed a request that joined or finished"
    batch, page = server.scheduler.running_batch, server.scheduler.page_size
    if switch.machine.mode is not Mode.PLAIN or batch.is_empty() or not batch.spec_algorithm.is_none():
        return
    assert batch.spec_info is None
    if batch.out_cache_loc is not None and batch.forward_mode.is_decode():
        assert len(batch.out_cache_loc) == len(batch.reqs)
    for req in batch.reqs:
        if req.finished() or v2_compat.row_index(req) is None:
            continue
        committed, allocated = v2_compat.committed_len(req), v2_compat.allocated_len(req)
        assert committed <= allocated <= -(-committed // page) * page, (req.rid, committed, allocated)
        ahead = committed - (len(req.origin_input_ids) + len(req.output_ids) - 1)
        assert 0 <= ahead <= 1, (req.rid, committed, ahead)  # 1: the token of a step in flight


def plain_answers(requests: Sequence[Request], mode: str = "plain", **options: Any) -> dict[str, Output]:
    """What a server without specswitch answers."""
    with open_plain(mode, **options) as server:
        return run(server, Scenario(requests)).outputs


def assert_same_answers(outcome: Outcome, plain: Mapping[str, Output]) -> None:
    """Every answer equals the plain server's; an aborted one as far as both go."""
    for rid, output in outcome.outputs.items():
        got, expected = output.output_ids, plain[rid].output_ids
        assert output.finish_reason is not None, rid
        if rid in outcome.aborted:
            # SGLang sends an aborted request all that its last verify step accepted, past max_new_tokens too
            assert output.finish_reason["type"] == "abort", (rid, output.finish_reason)
            shorter = min(len(got), len(expected))
            got, expected = got[:shorter], expected[:shorter]
        assert got == expected, (
            f"{rid} differs from the plain server's at token {_first_difference(got, expected)} of {len(expected)}"
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


def until_pressed(outcome: Outcome, first: Mode, then: Callable[[int, Mode], Mode]) -> Callable[[int, Mode], Mode]:
    """``first`` until a full pool has forced a retraction in it, then as told."""
    return lambda turn, mode: then(turn, mode) if outcome.pressed_in[first] else first


def workload(seed: int, count: int, vocab_size: int, max_new_tokens: int = 60, prefix: str = "r") -> list[Request]:
    """Requests of unequal lengths that arrive one after another."""
    dice = random.Random(seed)
    requests, turn = [], 0
    for index in range(count):
        length = dice.choice([3, 5, 9, 16, 17, 33, 40, 60])
        ids = [1] + [dice.randrange(4, vocab_size) for _ in range(length - 1)]
        requests.append(Request(f"{prefix}{index}", ids, max_new_tokens - 5 * (index % 4), turn))
        turn += dice.randrange(0, 9)
    return requests


def _first_difference(got: Sequence[int], expected: Sequence[int]) -> int:
    for index, (left, right) in enumerate(zip(got, expected, strict=False)):
        if left != right:
            return index
    return min(len(got), len(expected))
