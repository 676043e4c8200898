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
from specswitch.cpu_engine.server import CpuServer
from specswitch.profile import Curve, Point

pytestmark = [pytest.mark.http, pytest.mark.once]

EAGLE = next(name for name in installed_release().modes if name.startswith("eagle"))
FLAGS = ["--enable-specswitch", "--specswitch-policy=goodput", "--specswitch-log-format=json"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The profile that a server has made of itself before it was ready."""
    folder = tmp_path_factory.mktemp("cache")
    with CpuServer(EAGLE, flags=FLAGS, env={"XDG_CACHE_HOME": str(folder)}, max_running_requests=2) as server:
        status: dict[str, Any] = server.server_info()["internal_states"][0]["specswitch"]
        assert server.generate(PROMPTS[0], 8)["text"]
        log = server.log()
    path = Path(status["profile"])
    assert path.is_relative_to(folder / "specswitch")
    assert (status["pinned"], status["fault"]) == (None, None)
    assert log.index(f"the profile is {path}") < log.index("The server is fired up and ready to roll!")
    return path


def hopeless(measured: Path, path: Path) -> str:
    """The same profile, but a verify step takes fifty times as long as a plain one."""
    plain = Curve([Point(1, 0.0, 0.02), Point(8, 0.0, 0.03)], 0.0)
    speculative = Curve([Point(1, 0.0, 1.0), Point(8, 0.0, 1.5)], 0.0)
    profiles.save(msgspec.structs.replace(profiles.load(measured), plain=plain, speculative=speculative), path)
    return str(path)


def test_a_server_measures_both_modes_before_it_is_ready(measured: Path) -> None:
    profile = profiles.load(measured)
    assert profile.key.release == installed_release().version
    assert [point.batch_size for point in profile.plain.points] == [1, 2]
    assert [point.batch_size for point in profile.speculative.points] == [1, 2]
    assert profile.switching.drain_seconds > 0.0


def test_a_profile_that_speaks_against_speculation_is_acted_upon(measured: Path, tmp_path: Path) -> None:
    given = hopeless(measured, tmp_path / "profile.json")
    flags = [*FLAGS, f"--specswitch-profile={given}", "--specswitch-dwell-steps=4"]
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
        assert status["profile"] == given
        assert status["transitions_by_kind"]["ENTER_PLAIN"] >= 1
        assert status["steps"]["PLAIN"] > 0
        assert answers(server) == first
    events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if '"specswitch.' in line]
    drains = [event for event in events if event.get("to") == "DRAINING"]
    assert drains
    assert "accept length" in drains[0]["reason"]
    assert "tokens/s" in drains[0]["reason"]
