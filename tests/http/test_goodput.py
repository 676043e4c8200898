"""The goodput policy on the real server: it goes by its profile, and by what steps really take."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specswitch import profile as profiles
from specswitch.cpu_engine.prompts import PROMPTS
from specswitch.cpu_engine.releases import installed_release
from specswitch.cpu_engine.server import CpuServer, ServerFailed
from specswitch.profile import Curve, Point

pytestmark = pytest.mark.http

SHIPPED = Path(__file__).parents[2] / "docs" / "benchmarks" / "profiles" / "h200-llama8b-0.5.17-eagle3-chain3.json"
EAGLE = next(name for name in installed_release().modes if name.startswith("eagle"))


def hopeless(path: Path) -> str:
    """A profile by which a verify step takes fifty times as long as a plain one."""
    shipped = profiles.load(SHIPPED)
    plain = Curve([Point(1, 0.0, 0.02), Point(8, 0.0, 0.03)], 0.0)
    speculative = Curve([Point(1, 0.0, 1.0), Point(8, 0.0, 1.5)], 0.0)
    arguments: Any = installed_release().server_arguments(EAGLE)
    key = msgspec.structs.replace(
        shipped.key,
        model=arguments["model_path"],
        gpu="cpu",
        algorithm="EAGLE",
        path="v1" if EAGLE.endswith("v1") else "v2",
        topk=arguments["speculative_eagle_topk"],
        num_steps=arguments["speculative_num_steps"],
        num_draft_tokens=arguments["speculative_num_draft_tokens"],
        dtype="auto",
        attention_backend=arguments["attention_backend"],
    )
    profiles.save(msgspec.structs.replace(shipped, key=key, plain=plain, speculative=speculative), path)
    return str(path)


def test_a_profile_that_speaks_against_speculation_is_acted_upon(tmp_path: Path) -> None:
    flags = [
        "--enable-specswitch",
        "--specswitch-policy=goodput",
        f"--specswitch-profile={hopeless(tmp_path / 'profile.json')}",
        "--specswitch-dwell-steps=4",
        "--specswitch-log-format=json",
    ]
    prompts = list(PROMPTS[:3])

    def answers(server: CpuServer) -> list[str]:
        with ThreadPoolExecutor(3) as pool:
            return list(pool.map(lambda prompt: server.generate(prompt, 120, ignore_eos=True)["text"], prompts))

    with CpuServer(EAGLE, flags=flags, log_path=tmp_path / "log") as server:
        first = answers(server)
        status: dict[str, Any] = server.server_info()["internal_states"][0]["specswitch"]
        deadline = time.monotonic() + 30
        while status["mode"] != "PLAIN" and time.monotonic() < deadline:
            answers(server)
            status = server.server_info()["internal_states"][0]["specswitch"]
        assert status["fault"] is None
        assert status["config"]["policy"] == "goodput"
        assert status["transitions_by_kind"]["ENTER_PLAIN"] >= 1
        assert status["steps"]["PLAIN"] > 0
        assert answers(server) == first
    events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if '"specswitch.' in line]
    drains = [event for event in events if event.get("to") == "DRAINING"]
    assert drains
    assert "accept length" in drains[0]["reason"]
    assert "tokens/s" in drains[0]["reason"]


def test_a_profile_that_is_not_there_ends_the_start(tmp_path: Path) -> None:
    gone = tmp_path / "gone.json"
    flags = ["--enable-specswitch", "--specswitch-policy=goodput", f"--specswitch-profile={gone}"]
    with pytest.raises(ServerFailed) as failed, CpuServer(EAGLE, flags=flags):
        pass
    assert f"The profile {gone} cannot be read (No such file or directory)" in failed.value.log
