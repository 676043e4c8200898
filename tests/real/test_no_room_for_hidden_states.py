"""A device that cannot hold --specswitch-draft-kv-budget ends the start with one sentence."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
import zmq
from switching import open_switched

from specswitch.cpu_engine.releases import installed_release
from specswitch.errors import ConfigError

pytestmark = pytest.mark.real

BUDGET = 3


def test_no_room_for_hidden_states_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, empty = [], torch.empty

    def is_full(*size: Any, **options: Any) -> torch.Tensor:
        if options.get("dtype") is torch.uint8 and size == (BUDGET * 2**20,):
            taken.append(size)
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return empty(*size, **options)

    monkeypatch.setattr(torch, "empty", is_full)
    monkeypatch.setattr(torch.cpu, "mem_get_info", lambda device: (2**20, 2**30), raising=False)
    mode = next(name for name in ("eagle-topk1-v1", "eagle-topk1") if name in installed_release().modes)
    flags = ["--specswitch-draft-kv-budget", str(BUDGET)]
    with pytest.raises(ConfigError, match=rf"asks for {BUDGET} MiB .* only 1 MiB free: lower it") as caught:
        open_switched(mode, flags=flags)
    assert len(taken) == 1
    monkeypatch.undo()
    # ``caught`` holds the scheduler that never was: collecting its ZeroMQ context would wait for ever for its sockets
    for socket in [made for made in gc.get_objects() if issubclass(type(made), zmq.Socket)]:
        socket.close(linger=0)
    del caught
    with open_switched(mode, flags=flags) as server:
        kept = server.scheduler.specswitch.engine._alone.kept
        assert kept.as_dict() == {"rows": 0, "rows_held": 0, "rows_overwritten": 0, "mib": float(BUDGET)}
