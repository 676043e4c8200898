"""The real HTTP server on the CPU, without specswitch."""

from __future__ import annotations

import os
import urllib.error
from collections.abc import Iterator

import psutil
import pytest
from tokenizers import Tokenizer

from specswitch.cpu_engine.inprocess import InProcessScheduler
from specswitch.cpu_engine.prompts import PROMPTS
from specswitch.cpu_engine.releases import DEFAULT_MODELS, installed_release
from specswitch.cpu_engine.server import CpuServer, ServerFailed

pytestmark = pytest.mark.http

PLAIN = next(name for name, mode in installed_release().modes.items() if not mode.arguments)


@pytest.fixture(scope="module")
def server() -> Iterator[CpuServer]:
    """One for all tests, and none of its processes is left afterwards."""
    with CpuServer(PLAIN, strict=True) as running:
        yield running
        assert running.returncode is None
        assert running._process is not None
        family = psutil.Process(running._process.pid).children(recursive=True)
        assert len(family) >= 2, "scheduler and detokenizer"
    assert running.returncode is not None
    gone, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
    assert len(gone) == len(family)
    running.stop()
    os.unlink(running.log_path)


def test_it_answers_as_the_scheduler_in_process(server: CpuServer) -> None:
    prompt = Tokenizer.from_file(str(DEFAULT_MODELS / "target" / "tokenizer.json")).encode(PROMPTS[0]).ids
    with InProcessScheduler(PLAIN) as scheduler:
        scheduler.add("a", prompt, 40)
        scheduler.run_until_idle()
        wanted = scheduler.output_ids()["a"]
    answer = server.generate(prompt, 40, ignore_eos=True)
    assert answer["output_ids"] == wanted
    assert server.generate(PROMPTS[0], 40, ignore_eos=True)["text"] == answer["text"]


def test_a_stream_grows_and_may_be_left(server: CpuServer) -> None:
    whole = server.generate(PROMPTS[1], 30, ignore_eos=True)["text"]
    events = server.stream(PROMPTS[1], 30, ignore_eos=True)
    first, second = next(events)["text"], next(events)["text"]
    events.close()  # type: ignore[attr-defined]
    assert len(first) < len(second) < len(whole)
    assert whole.startswith(second)


def test_it_says_what_it_is_and_refuses_what_it_does_not_know(server: CpuServer) -> None:
    info = server.server_info()
    assert info["version"] == installed_release().version
    assert info["internal_states"][0]["device"] == "cpu"
    with pytest.raises(urllib.error.HTTPError):
        server.get("/no-such-path")


def test_a_server_that_does_not_come_up_says_why() -> None:
    with pytest.raises(ServerFailed, match="exit status 2") as failure, CpuServer(PLAIN, flags=["--no-such-flag"]):
        pass
    assert failure.value.returncode == 2
    assert "--no-such-flag" in failure.value.log
