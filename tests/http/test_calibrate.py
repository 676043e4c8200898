"""``specswitch calibrate`` against the real server on the CPU, once per pinned mode."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from specswitch import profile as profiles
from specswitch.calibrate import measurements as kept
from specswitch.cli import main
from specswitch.cpu_engine.releases import installed_release
from specswitch.cpu_engine.server import CpuServer
from specswitch.signals import Mode

pytestmark = pytest.mark.http

EAGLE = next(name for name in installed_release().modes if name.startswith("eagle"))


def test_two_pinned_servers_make_a_profile(tmp_path: Path) -> None:
    rows, out = tmp_path / "measurements.json", tmp_path / "profile.json"
    plan = ["--sizes", "1,3", "--prompt-tokens", "16,128", "--output-tokens", "300", "--window-steps", "16"]
    for pinned in ("plain", "speculative"):
        with CpuServer(EAGLE, flags=["--enable-specswitch", f"--specswitch-mode={pinned}"]) as server:
            given = ["calibrate", server.url, "--measurements", str(rows), "--out", str(out), *plan]
            result = CliRunner().invoke(main, given)
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
