"""Pinned at run time, over HTTP, and ``specswitch calibrate``: one real server on the CPU."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from specswitch import profile as profiles
from specswitch.calibrate import measurements as kept
from specswitch.cli import main
from specswitch.cpu_engine.prompts import PROMPTS
from specswitch.cpu_engine.releases import installed_release
from specswitch.cpu_engine.server import CpuServer
from specswitch.signals import Mode

pytestmark = [pytest.mark.http, pytest.mark.once]

EAGLE = next(name for name in installed_release().modes if name.startswith("eagle"))


@pytest.fixture(scope="module")
def server() -> Iterator[CpuServer]:
    with CpuServer(EAGLE, flags=["--enable-specswitch", "--specswitch-log-format=json"]) as running:
        yield running


def state(server: CpuServer) -> dict[str, Any]:
    shown: dict[str, Any] = server.server_info()["internal_states"][0]["specswitch"]
    return shown


def command(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_a_mode_is_pinned_while_requests_run_and_changes_no_token(server: CpuServer) -> None:
    expected = server.generate(PROMPTS[0], 200, ignore_eos=True)["text"]
    assert state(server)["steps"]["PLAIN"] == 0
    events = server.stream(PROMPTS[0], max_new_tokens=200, ignore_eos=True)
    next(events)
    assert server.post("/set_internal_state", {"server_args": {"specswitch_mode": 2}}) == [True]
    assert list(events)[-1]["text"] == expected
    shown = state(server)
    assert (shown["pinned"], shown["mode"]) == ("plain", "PLAIN")
    assert shown["steps"]["PLAIN"] > 0

    result = command("pin", "speculative", "--url", server.url)
    assert result.exit_code == 0, result.output
    assert f"{server.url}: pinned to speculative" in result.output
    assert server.generate(PROMPTS[0], 200, ignore_eos=True)["text"] == expected
    assert state(server)["mode"] == "SPECULATIVE"
    result = command("pin", "configured", "--url", server.url)
    assert "as configured, auto; now SPECULATIVE" in result.output
    assert state(server)["pinned"] is None
    assert [line for line in server.log().splitlines() if '"specswitch.pinned"' in line and '"plain"' in line]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"specswitch_mode": 9}, "specswitch_mode is 9, which is none of 0 (configured), 1 (auto), 2 (plain)"),
        ({"specswitch_mod": 2}, "specswitch_mod is nothing that specswitch can set: use specswitch_mode"),
        ({"specswitch_mode": 2, "pp_max_micro_batch_size": 1}, "was sent together with other keys: send it alone."),
    ],
)
def test_a_bad_command_is_answered_with_one_sentence(server: CpuServer, values: dict[str, Any], why: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.post("/set_internal_state", {"server_args": values})
    assert refused.value.code == 400
    assert why in json.load(refused.value)["message"]
    assert state(server)["pinned"] is None


def test_one_server_makes_a_profile(server: CpuServer, tmp_path: Path) -> None:
    rows, out = tmp_path / "measurements.json", tmp_path / "profile.json"
    plan = ["--sizes", "1,3", "--prompt-tokens", "16,128", "--output-tokens", "300", "--window-steps", "16"]
    plan += ["--window-seconds", "0.05"]
    result = command("calibrate", server.url, "--measurements", str(rows), "--out", str(out), *plan)
    assert result.exit_code == 0, result.output
    measured = kept.load(rows)
    assert {(window.mode, window.batch_size) for window in measured.windows} == {
        (mode, size) for mode in (Mode.PLAIN, Mode.SPECULATIVE) for size in (1, 3)
    }
    assert len(measured.windows) == 8
    for window in measured.windows:
        assert window.steps >= 16
        assert 0.0005 < window.seconds < 2.0
        assert window.context_tokens >= 16 * window.batch_size
    profile = profiles.load(out)
    assert profile.key.release == installed_release().version
    assert profile.key.algorithm == "EAGLE"
    assert profile.accept_length >= 1.0
    assert "break-even accept length" in result.output
    assert state(server)["pinned"] is None
    assert state(server)["fault"] is None
