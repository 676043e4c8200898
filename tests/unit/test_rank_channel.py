"""The channel that carries decisions with SGLang's request broadcast, on the objects that hold its hook point."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from types import SimpleNamespace
from typing import Any

import pytest

from specswitch.engine.hooks import InstanceHooks
from specswitch.engine.rank_channel import RankChannel


@dataclass(kw_only=True, slots=True, frozen=True)
class FrozenReceiver:
    """Shaped as ``SchedulerRequestReceiver`` of SGLang 0.5.13 and later."""

    input_blocker: Any
    max_recv_per_poll: int = 1


def scheduler_with(**attributes: Any) -> Any:
    return SimpleNamespace(_request_dispatcher=SimpleNamespace(_mapping={}), **attributes)


def attached(scheduler: Any) -> tuple[RankChannel, InstanceHooks]:
    channel, hooks = RankChannel(scheduler), InstanceHooks()
    channel.attach(hooks, lambda decision: None)
    return channel, hooks


def test_a_scheduler_that_holds_its_blocker_itself() -> None:
    scheduler = scheduler_with(input_blocker=None)
    channel, hooks = attached(scheduler)
    channel.send("order")  # type: ignore[arg-type]
    assert scheduler.input_blocker.handle(["request"]) == ["request", "order"]
    assert scheduler.input_blocker.handle(["request"]) == ["request"]
    hooks.remove_all()
    assert scheduler.input_blocker is None


def test_a_frozen_receiver_is_replaced_and_put_back() -> None:
    receiver = FrozenReceiver(input_blocker=None, max_recv_per_poll=7)
    scheduler = scheduler_with(request_receiver=receiver)
    channel, hooks = attached(scheduler)
    channel.send("order")  # type: ignore[arg-type]
    assert scheduler.request_receiver.max_recv_per_poll == 7
    assert scheduler.request_receiver.input_blocker.handle([]) == ["order"]
    hooks.remove_all()
    assert scheduler.request_receiver is receiver


@pytest.mark.real
def test_sglangs_own_receiver() -> None:
    module = pytest.importorskip("sglang.srt.managers.scheduler_components.request_receiver", reason="SGLang 0.5.12")
    kind = module.SchedulerRequestReceiver
    needed = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    scheduler = scheduler_with(request_receiver=kind(**dict.fromkeys(needed)))
    channel, _ = attached(scheduler)
    channel.send("order")  # type: ignore[arg-type]
    assert scheduler.request_receiver.input_blocker.handle([]) == ["order"]
    assert scheduler.request_receiver.input_blocker.handle(None) is None
