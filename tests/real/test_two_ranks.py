"""Two real processes over gloo: SGLang's own request broadcast carries the decisions."""

from __future__ import annotations

import multiprocessing
import os
import random
import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest

DECISIONS = 10_000

pytestmark = [pytest.mark.real, pytest.mark.once]


def test_ten_thousand_decisions_under_noise_without_a_disagreement() -> None:
    logs = _run_two_ranks(DECISIONS, diverge_at=None)

    assert logs[0] == logs[1]
    assert len(logs[0]["applied"]) >= DECISIONS - 1
    assert logs[0]["modes"].count("PLAIN") > DECISIONS // 10


def test_a_rank_that_diverges_is_told_within_one_turn_of_the_next_decision() -> None:
    logs = _run_two_ranks(400, diverge_at=200)

    assert "diverged" in logs[1]["error"]
    assert logs[1]["turn"] <= 202
    assert logs[1]["seconds_to_notice"] < 1.0


def _run_two_ranks(turns: int, diverge_at: int | None) -> list[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    results: Any = context.Queue()
    ranks = [
        context.Process(target=_rank, args=(rank, port, turns, diverge_at, results), daemon=True) for rank in range(2)
    ]
    for process in ranks:
        process.start()
    try:
        expected = 2 if diverge_at is None else 1
        found = dict(results.get(timeout=240) for _ in range(expected))
    finally:
        for process in ranks:
            process.kill()
            process.join()
    return [found.get(rank, {}) for rank in range(2)]


def _rank(rank: int, port: int, turns: int, diverge_at: int | None, results: Any) -> None:
    """One rank's turns: broadcast, dispatch, decide, act - with a Switch over an engine that only counts."""
    from specswitch.cpu_engine import environment

    environment.activate()
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    from sglang.srt.utils import broadcast_pyobj

    from specswitch import ranks
    from specswitch.config import SwitchConfig
    from specswitch.engine.hooks import InstanceHooks
    from specswitch.engine.rank_channel import RankChannel
    from specswitch.ranks import Decision, Follower, Leader, RankDisagreement
    from specswitch.switch import Switch

    ranks.HEARTBEAT_STEPS = 1  # every turn carries a decision
    group = dist.new_group(backend="gloo")
    scheduler = SimpleNamespace(input_blocker=None, _request_dispatcher=SimpleNamespace(_mapping={}))
    channel = RankChannel(scheduler)
    follower = Leader(_Alternating(), channel.send) if rank == 0 else Follower()
    applied: list[tuple[int, int]] = []

    def deliver(decision: Decision) -> None:
        follower.deliver(decision)
        applied.append((decision.epoch, turn))

    channel.attach(InstanceHooks(), deliver)
    engine = _CountingEngine()
    switch = Switch(engine, follower, SwitchConfig(dwell_steps=1), _Silent())
    engine.listener = switch
    noise = random.Random(rank)
    modes = []
    diverged_at = 0.0
    try:
        for turn in range(turns):
            if rank == 1 and noise.random() < 0.02:
                time.sleep(noise.random() * 0.01)
            if rank == 1 and turn == diverge_at:
                engine.size += 1
                diverged_at = time.perf_counter()
            requests = scheduler.input_blocker.handle([] if rank == 0 else None)
            for request in broadcast_pyobj(requests, rank, group, src=0):
                scheduler._request_dispatcher._mapping[type(request)](request)
            engine.turn()
            modes.append(switch.machine.mode.value)
    except RankDisagreement as error:
        results.put((rank, {"error": str(error), "turn": turn, "seconds_to_notice": time.perf_counter() - diverged_at}))
        time.sleep(5)
        return
    results.put((rank, {"applied": applied, "modes": modes}))
    time.sleep(5)


class _Alternating:
    """Wishes for the other mode every fourth turn."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, sample: Any) -> Any:
        from specswitch.policy import Wish
        from specswitch.signals import Mode

        self._count += 1
        return Wish(Mode.PLAIN if self._count // 4 % 2 else Mode.SPECULATIVE, f"{self._count}")


class _CountingEngine:
    """Takes a turn to drain and a turn to return, as an engine under overlap does."""

    def __init__(self) -> None:
        self.listener: Any = None
        self.size = 4
        self._in_flight = False
        self._return_asked = False

    def turn(self) -> None:
        from specswitch.engine.base import SpeculativeEntry
        from specswitch.signals import Mode

        self.listener.on_turn()
        if self._return_asked:
            self._return_asked = False
            self.listener.on_returned(SpeculativeEntry(self.size, 0))
        self.listener.on_decode_step(Mode.PLAIN)
        self._in_flight = not self._in_flight

    def sample(self, mode: Any, decode_step: int, steps_in_mode: int) -> Any:
        from specswitch.signals import LoadSample

        return LoadSample(mode, self.size, 0, decode_step, steps_in_mode, None)

    def batch_version(self) -> int:
        return 0

    def start_drain(self) -> None:
        self._in_flight = True

    def cancel_drain(self) -> None:
        pass

    def drained(self) -> bool:
        return not self._in_flight

    def enter_plain(self) -> Any:
        from specswitch.engine.base import PlainEntry

        return PlainEntry(self.size, 0)

    def request_return(self, draft_kv: str, sampled: int | None = None) -> None:
        self._return_asked = True

    def end_look(self) -> None: ...

    def cancel_return(self) -> bool:
        self._return_asked = False
        return True


class _Silent:
    def transition(self, record: Any) -> None: ...

    def recommendation(self, wish: Any, sample: Any) -> None: ...

    def fault(self, error: BaseException, doing: str) -> None:
        raise error

    def status(self, sample: Any) -> dict[str, Any]:
        return {}
