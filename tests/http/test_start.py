"""What is refused at start: one sentence, a non-zero exit, before any model is loaded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from packaging.version import Version

from specswitch.cpu_engine.environment import child_environment
from specswitch.cpu_engine.releases import as_flags, installed_release

pytestmark = pytest.mark.http

SHIPPED = Path(__file__).parents[2] / "docs" / "benchmarks" / "profiles" / "h200-llama8b-0.5.17-eagle3-chain3.json"

PROBE = """
import sys
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.server_args import prepare_server_args
for line in sys.stdin.read().splitlines():
    argv = line.split("\\t")
    try:
        server_args = prepare_server_args(argv)
        getattr(server_args, "resolve_once", lambda: None)()
        print("accepted", flush=True)
    except SystemExit as ending:
        print(ending.code, flush=True)
"""
"""Parses and resolves one command line after the other, as the launcher does before it loads a model."""


def _speculative() -> list[str]:
    name = next(name for name in ("eagle-topk1-v1", "eagle-topk1") if name in installed_release().modes)
    return as_flags(installed_release().server_arguments(name))


def _plain() -> list[str]:
    return as_flags(installed_release().server_arguments("plain"))


def _run(code: Sequence[str], stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    environment = {**child_environment(installed_release()), **env}
    return subprocess.run(
        [sys.executable, *code], input=stdin, capture_output=True, text=True, env=environment, timeout=300, check=False
    )


def _of_adaptive_speculation() -> str:
    """SGLang's choice of the number of steps: beside specswitch's choice of the mode since 0.5.13."""
    return "--speculative-adaptive" if Version(installed_release().version) < Version("0.5.13") else "accepted"


def test_refusals_are_one_sentence_each(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("high_watermark: 4\nlow_watermark: 9\n")
    on = "--enable-specswitch"
    cases = [
        ([*_speculative(), on], "accepted"),
        ([*_plain(), on], "--speculative-algorithm is not set"),
        ([*_speculative(), on, "--specswitch-high-watermark=many"], "'many', which is not an integer"),
        ([*_speculative(), on, "--specswitch-high-watermark=4", "--specswitch-low-watermark=4"], "not lower than"),
        ([*_speculative(), on, f"--specswitch-config={file}"], str(file)),
        ([*_speculative(), on, "--specswitch-mode=sometimes"], "one of auto, observe, plain, speculative"),
        ([*_speculative(), "--specswitch-dwell-steps=5"], "specswitch is not enabled"),
        ([*_speculative(), on, "--specswitch-policy=goodput", "--specswitch-profile=nowhere.json"], "nowhere.json"),
        ([*_speculative(), on, "--specswitch-policy=goodput", f"--specswitch-profile={SHIPPED}"], "for another server"),
        ([*_speculative(), on, "--speculative-adaptive"], _of_adaptive_speculation()),
    ]

    # the flag on the probe's own command line is what a launcher's plugins see
    told = _run(["-c", PROBE, on], "\n".join("\t".join(argv) for argv, _ in cases))
    lines = [line for line in told.stdout.splitlines() if line == "accepted" or line.startswith("specswitch: ")]

    assert len(lines) == len(cases), told.stdout + told.stderr[-2000:]
    for line, (argv, expected) in zip(lines, cases, strict=True):
        assert expected in line, (argv[-2:], line)
        if line != "accepted":
            assert line.rstrip(".").count(". ") == 0, line


@pytest.mark.parametrize("launcher", ["launch_server", "serve"])
def test_a_refused_server_exits_before_the_model_is_loaded(launcher: str) -> None:
    flags = [*_plain(), "--enable-specswitch"]
    if launcher == "serve":
        command = [str(Path(sys.executable).with_name("sglang")), "serve", *flags]
        environment = child_environment(installed_release())
        ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    else:
        ended = _run(["-m", "sglang.launch_server", *flags])

    assert ended.returncode not in (0, None)
    output = ended.stdout + ended.stderr
    assert "specswitch: specswitch needs speculative decoding" in output, output[-2000:]
    assert "Load weight" not in output
    assert "Traceback" not in output


def test_variables_enable_and_a_kill_switch_wins() -> None:
    argv = "\t".join([*_plain()])
    enabled = _run(["-c", PROBE], argv, SPECSWITCH_ENABLE="1")
    assert "--speculative-algorithm is not set" in enabled.stdout

    killed = _run(["-c", PROBE], "\t".join([*_plain(), "--enable-specswitch"]), SPECSWITCH_ENABLE="0")
    assert "accepted" in killed.stdout


def test_without_the_flag_nothing_is_hooked() -> None:
    code = (
        "from sglang.srt.plugins import load_plugins; load_plugins();"
        "from sglang.srt.plugins.hook_registry import HookRegistry;"
        "import sys; print(dict(HookRegistry._hooks), 'specswitch.engine.build' in sys.modules)"
    )
    told = _run(["-c", code])

    assert told.stdout.splitlines()[-1].startswith("{}"), told.stdout + told.stderr
