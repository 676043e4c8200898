"""Two tensor-parallel ranks of the real server switch together, and answer as one plain rank does."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from specswitch.control import NUMBERS
from specswitch.cpu_engine.prompts import PROMPTS
from specswitch.cpu_engine.server import CpuServer

pytestmark = [pytest.mark.http, pytest.mark.once]

MODE = {"0.5.12": "eagle-topk1-v1"}
FLAGS = [
    "--enable-specswitch",
    "--specswitch-high-watermark=3",
    "--specswitch-low-watermark=1",
    "--specswitch-dwell-steps=4",
    "--specswitch-draft-kv-budget=1",
    "--specswitch-log-format=json",
]


def _answers(server: CpuServer, concurrency: int, prompts: list[str]) -> list[str]:
    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(lambda text: server.generate(text, max_new_tokens=40)["text"], prompts))


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two ranks need two cores")
def test_two_ranks_switch_together(tmp_path: Path) -> None:
    from specswitch.cpu_engine.releases import installed_release

    mode = MODE.get(".".join(installed_release().version.split(".")[:3]), "eagle-topk1")
    prompts = list(PROMPTS[:4])
    with CpuServer("plain") as plain:
        expected = _answers(plain, 4, prompts)
    log = tmp_path / "server.log"
    with CpuServer(
        mode, flags=FLAGS, env={"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}, log_path=log, tp_size=2, max_running_requests=4
    ) as server:
        alone = _answers(server, 1, prompts[:1])
        together = _answers(server, 4, prompts)
        alone_again = _answers(server, 1, prompts[1:2])
        pinned = []
        for name in ("plain", "speculative"):
            events = server.stream(prompts[0], max_new_tokens=40)
            next(events)
            assert server.post("/set_internal_state", {"server_args": {"specswitch_mode": NUMBERS[name]}}) == [True]
            pinned.append(list(events)[-1]["text"])
            shown = server.server_info()["internal_states"][0]["specswitch"]
            assert (shown["pinned"], shown["mode"], shown["fault"]) == (name, name.upper(), None)

    assert (alone, together, alone_again) == (expected[:1], expected, expected[1:2])
    assert pinned == expected[:1] * 2
    events = [
        json.loads(line) for line in log.read_text(errors="replace").splitlines() if line.startswith('{"timestamp')
    ]
    modes = [event["to"] for event in events if event["event"] == "specswitch.transition" and event["to"] != "DRAINING"]
    assert modes[:2] == ["PLAIN", "SPECULATIVE"]
    assert sum(event["event"] == "specswitch.active" for event in events) == 1, "rank 0 alone logs"
    assert not any(event["event"] == "specswitch.fault" for event in events)
