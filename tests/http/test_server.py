"""The real HTTP server with the real flags: it switches with the load, and answers as a plain server does."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from specswitch.cpu_engine.prompts import PROMPTS
from specswitch.cpu_engine.releases import installed_release
from specswitch.cpu_engine.server import CpuServer

pytestmark = pytest.mark.http

HIGH, LOW, DWELL = 3, 1, 8
LENGTH = 48
OPTIONS = {"max_running_requests": 8, "max_total_tokens": 8192, "grammar_backend": "xgrammar"}
SCHEMA = json.dumps(
    {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}}, "required": ["name"]}
)
REQUESTS: list[dict[str, Any]] = [
    {"prompt": PROMPTS[0]},
    {"prompt": PROMPTS[1], "stop": ["\n"]},
    {"prompt": PROMPTS[5], "json_schema": SCHEMA},
    {"prompt": PROMPTS[3], "return_logprob": True},
]
"""What four clients ask for at once."""


def _mode() -> str:
    return "eagle-v2" if "eagle-v2" in installed_release().modes else "eagle-topk1"


@pytest.fixture(scope="module")
def expected() -> dict[str, dict[str, Any]]:
    """A plain server's answers."""
    with CpuServer("plain", **OPTIONS) as plain:
        return {request["prompt"]: plain.generate(max_new_tokens=LENGTH, **request) for request in REQUESTS}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, expected: dict[str, Any]) -> Iterator[CpuServer]:
    flags = [
        "--enable-specswitch",
        f"--specswitch-high-watermark={HIGH}",
        f"--specswitch-low-watermark={LOW}",
        f"--specswitch-dwell-steps={DWELL}",
        "--specswitch-log-format=json",
    ]
    log = tmp_path_factory.mktemp("server") / "server.log"
    with CpuServer(_mode(), flags=flags, log_path=log, strict=True, **OPTIONS) as running:
        yield running


def _events(server: CpuServer, name: str) -> list[dict[str, Any]]:
    lines = (line[line.index('{"timestamp"') :] for line in server.log().splitlines() if '{"timestamp"' in line)
    events = []
    for line in lines:
        with contextlib.suppress(ValueError):
            events.append(json.loads(line))
    return [event for event in events if event["event"] == name]


def _state(server: CpuServer) -> dict[str, Any]:
    state: dict[str, Any] = server.server_info()["internal_states"][0]["specswitch"]
    return state


def _together(server: CpuServer) -> list[dict[str, Any]]:
    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request is REQUESTS[0]:
            return list(server.stream(max_new_tokens=LENGTH, **request))[-1]
        return server.generate(max_new_tokens=LENGTH, **request)

    with ThreadPoolExecutor(len(REQUESTS)) as clients:
        return list(clients.map(answer, REQUESTS))


def _is_flushed(server: CpuServer) -> bool:
    """SGLang empties its pools only when nothing runs or waits."""
    try:
        urllib.request.urlopen(urllib.request.Request(server.url + "/flush_cache", method="POST"), timeout=30).close()
    except urllib.error.HTTPError:
        return False
    return True


def test_load_up_and_down_switches_there_and_back(server: CpuServer, expected: dict[str, dict[str, Any]]) -> None:
    active = _events(server, "specswitch.active")
    assert len(active) == 1
    assert active[0]["worker"] == "EAGLEWorkerV2"
    assert active[0]["config"]["high_watermark"] == HIGH
    assert _state(server)["mode"] == "SPECULATIVE"

    alone = [server.generate(max_new_tokens=LENGTH, **REQUESTS[0])]
    crowd = [answer for _ in range(3) for answer in _together(server)]
    busy = _state(server)
    alone += [server.generate(max_new_tokens=LENGTH, **request) for request in (REQUESTS[0], REQUESTS[3]) * 2]
    idle = _state(server)

    for answer, request in zip(alone, [REQUESTS[0], *[REQUESTS[0], REQUESTS[3]] * 2], strict=True):
        assert answer["text"] == expected[request["prompt"]]["text"]
    for answer, request in zip(crowd, REQUESTS * 3, strict=True):
        assert answer["text"] == expected[request["prompt"]]["text"], request
    assert crowd[0]["meta_info"]["finish_reason"]["type"] == "length"
    assert crowd[1]["meta_info"]["finish_reason"] == expected[REQUESTS[1]["prompt"]]["meta_info"]["finish_reason"]
    ours = [logprob for logprob, *_ in crowd[3]["meta_info"]["output_token_logprobs"]]
    plains = [logprob for logprob, *_ in expected[REQUESTS[3]["prompt"]]["meta_info"]["output_token_logprobs"]]
    assert ours == pytest.approx(plains, abs=1e-3)

    modes = [event["to"] for event in _events(server, "specswitch.transition") if event["to"] != "DRAINING"]
    assert modes[:2] == ["PLAIN", "SPECULATIVE"]
    assert busy["transitions_by_kind"]["ENTER_PLAIN"] >= 1
    assert idle["mode"] == "SPECULATIVE"
    assert idle["last_transition"]["to"] == "SPECULATIVE"
    assert idle["draft_kv"]["tokens_caught_up"] > 0
    assert idle["fault"] is None


def test_load_at_the_watermark_switches_at_most_once_per_dwell(server: CpuServer) -> None:
    with ThreadPoolExecutor(4) as clients:
        for concurrency in (2, 3, 4, 3, 2, 3, 4):
            futures = [clients.submit(server.generate, prompt, max_new_tokens=24) for prompt in PROMPTS[:concurrency]]
            for future in futures:
                future.result()

    entries = [event for event in _events(server, "specswitch.transition") if event["to"] in ("PLAIN", "SPECULATIVE")]
    steps = [event["step"] for event in entries]
    assert all(later - earlier >= DWELL for earlier, later in itertools.pairwise(steps)), steps


def test_a_client_that_goes_away_leaves_nothing_behind(server: CpuServer, expected: dict[str, dict[str, Any]]) -> None:
    with ThreadPoolExecutor(4) as clients:
        others = [clients.submit(server.generate, prompt, max_new_tokens=60) for prompt in PROMPTS[6:9]]
        events = server.stream(PROMPTS[2], max_new_tokens=400)
        for _ in range(5):
            next(events)
        events.close()
        for other in others:
            other.result()

    answer = server.generate(max_new_tokens=LENGTH, **REQUESTS[0])
    assert answer["text"] == expected[REQUESTS[0]["prompt"]]["text"]
    deadline = time.monotonic() + 60
    while _state(server)["batch_size"] or not _is_flushed(server):
        assert time.monotonic() < deadline, "the aborted request still holds slots"
        time.sleep(0.5)
    assert server.returncode is None
    assert _state(server)["fault"] is None
    assert not _events(server, "specswitch.fault")


def test_the_server_ran_to_the_end_under_its_own_memory_checks(server: CpuServer) -> None:
    assert server.returncode is None
    assert "leak" not in server.log().lower().replace("leak_check", "")
    assert Path(server.log_path).exists()
