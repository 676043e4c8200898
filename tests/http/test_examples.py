"""The examples, run as a reader would run them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from specswitch.cpu_engine.environment import child_environment
from specswitch.cpu_engine.prompts import PROMPTS
from specswitch.cpu_engine.releases import DEFAULT_MODELS, as_flags, installed_release
from specswitch.cpu_engine.server import free_port

pytestmark = [pytest.mark.http, pytest.mark.once]

EXAMPLES = Path(__file__).parents[2] / "examples"
START_SECONDS = 300


def environment() -> dict[str, str]:
    """In which ``python`` is the one that runs the tests."""
    environ = child_environment(installed_release())
    environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environ.get("PATH", os.defpath)])
    return environ


@contextlib.contextmanager
def served(log: Path, *flags: str) -> Iterator[str]:
    """``serve.sh`` on the embedded models, with what a CPU needs added; gives the URL."""
    release = installed_release()
    mode = "eagle3-v2" if "eagle3-v2" in release.modes else "eagle3-topk1"
    port = free_port()
    arguments = {**release.server_arguments(mode), "port": port, "skip_server_warmup": True}
    command = [
        EXAMPLES / "serve.sh",
        DEFAULT_MODELS / "target",
        DEFAULT_MODELS / "eagle3",
        *as_flags(arguments),
        *flags,
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=environment(), stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_healthy(url, process, log)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-3000:]
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
            return
        time.sleep(0.3)
    raise TimeoutError(log.read_text()[-3000:])


def wait_until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def status(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/server_info", timeout=60) as response:
        shown: dict[str, Any] = json.load(response)["internal_states"][0]["specswitch"]
        return shown


def generate(url: str, prompt: str, **sampling: Any) -> dict[str, Any]:
    body = {"text": prompt, "sampling_params": {"max_new_tokens": 24, **sampling}}
    request = urllib.request.Request(f"{url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


def test_flags_file_and_watching(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with served(log, "--specswitch-config", str(EXAMPLES / "specswitch.yaml"), "--specswitch-dwell-steps", "4") as url:
        with ThreadPoolExecutor() as elsewhere:
            long = elsewhere.submit(generate, url, PROMPTS[0], temperature=0, max_new_tokens=600, ignore_eos=True)
            wait_until(lambda: status(url)["steps"]["SPECULATIVE"] >= 8)
            generate(url, PROMPTS[1], temperature=0.7, min_p=0.1)
            through_both = long.result()["meta_info"]
        watched = subprocess.run(
            [sys.executable, EXAMPLES / "watch_server.py", url, "--log", log, "--times", "2"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
    # the long request was decoded both ways and counts verify steps alone, by which SGLang would divide all its tokens
    verified = through_both["spec_num_correct_drafts"] + through_both["spec_verify_ct"]
    assert 8 <= verified < through_both["completion_tokens"] - 8
    assert through_both["spec_accept_length"] == pytest.approx(verified / through_both["spec_verify_ct"])

    active = next(json.loads(line) for line in log.read_text().splitlines() if '"specswitch.active"' in line)
    config = active["config"]
    # flags of the script, one of them overridden here, and what the file alone says
    assert (config["high_watermark"], config["low_watermark"], config["dwell_steps"]) == (48, 32, 4)
    assert config["plain_for"] == ["min_p"]

    assert f"{active['worker']}, overlap" in watched
    assert "SPECULATIVE -> DRAINING: running requests use min_p" in watched
    assert "DRAINING -> PLAIN: running requests use min_p" in watched
    assert re.search(r"PLAIN -> SPECULATIVE: decode batch [01] <= low watermark 32", watched)
    assert len(re.findall(r"^SPECULATIVE +batch +0 +queue +0 ", watched, re.MULTILINE)) == 2


def test_engine() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "engine.py"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=2 * START_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "mode SPECULATIVE" in done.stdout
    assert "'ENTER_PLAIN': 1" in done.stdout
    assert "'RETURN': 1" in done.stdout
