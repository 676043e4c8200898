"""Start SGLang servers side by side, wait for them, read their logs, stop them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.plan import Plan
from specswitch.client import ServerClient

_READY = "The server is fired up and ready to roll"
_DECODE = re.compile(r"Decode batch.*#running-req: (\d+),.*gen throughput \(token/s\): ([\d.]+)")
_ACCEPT = re.compile(r"accept len: ([\d.]+)")
_PORT_STEP = 60  # SGLang also takes ports above the one it is given


@dataclass
class RunningServer:
    name: str
    port: int
    process: subprocess.Popen[bytes]
    log_path: Path
    command: str
    started: float = field(default_factory=time.monotonic)
    ready_seconds: float | None = None
    failure: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log_size(self) -> int:
        return self.log_path.stat().st_size

    def log_since(self, offset: int) -> str:
        with self.log_path.open(errors="replace") as stream:
            stream.seek(offset)
            return stream.read()

    def decode_lines(self, offset: int, running: int) -> list[tuple[float, float | None]]:
        """(tokens per second, accept length or None) of SGLang's log lines with that many requests running."""
        lines = []
        for line in self.log_since(offset).splitlines():
            found = _DECODE.search(line)
            if found and int(found[1]) == running:
                accept = _ACCEPT.search(line)
                lines.append((float(found[2]), float(accept[1]) if accept else None))
        return lines

    def events(self, name: str, offset: int = 0) -> list[dict[str, Any]]:
        """specswitch's log events of that name (servers run with ``--specswitch-log-format json``)."""
        wanted = f'"event": "{name}"'
        return [json.loads(line) for line in self.log_since(offset).splitlines() if line[:1] == "{" and wanted in line]

    def look(self) -> None:
        if self.ready_seconds is None and self.failure is None:
            if _READY in self.log_since(0) and self._answers():
                self.ready_seconds = round(time.monotonic() - self.started, 1)
            elif self.process.poll() is not None:
                self.failure = f"ended with status {self.process.returncode}"

    def _answers(self) -> bool:
        # the line that says so comes before the port is open where no request warms the server up
        try:
            urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
        except OSError:
            return False
        return True

    def flush_cache(self) -> None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(urllib.request.Request(f"{self.url}/flush_cache", method="POST"), timeout=20).close()

    def switch_state(self) -> dict[str, Any] | None:
        """What ``/server_info`` says of specswitch; None on a server without it."""
        with urllib.request.urlopen(f"{self.url}/server_info", timeout=20) as answer:
            states = json.load(answer).get("internal_states") or [{}]
        state: dict[str, Any] | None = states[0].get("specswitch")
        return state

    def pin(self, mode: str) -> None:
        """Have a server with specswitch operate in ``mode`` from now on (``specswitch pin``)."""
        ServerClient(self.url).pin(mode)  # type: ignore[arg-type]

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=60)


def _start(plan: Plan, name: str, port: int, logs: Path, environment: Mapping[str, str]) -> RunningServer:
    command = plan.command(name, port)
    log_path = logs / f"{name}.log"
    logs.mkdir(parents=True, exist_ok=True)
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment, **plan.environment(name)},
            start_new_session=True,
        )
    return RunningServer(name, port, process, log_path, shlex.join(command))


@contextlib.contextmanager
def running(
    plan: Plan,
    names: Sequence[str],
    logs: Path,
    base_port: int,
    limit_seconds: float,
    say: Callable[[str], None],
    environment: Mapping[str, str],
) -> Iterator[list[RunningServer]]:
    """A group of servers, those that came up ready; the log's end of one that did not is said."""
    group = []
    try:
        for place, name in enumerate(names):
            group.append(_start(plan, name, base_port + _PORT_STEP * place, logs, environment))
            time.sleep(1)  # they measure the free memory of the GPU that they share
        give_up = time.monotonic() + limit_seconds
        while any(server.ready_seconds is None and server.failure is None for server in group):
            for server in group:
                server.look()
                if server.ready_seconds is None and time.monotonic() > give_up and server.failure is None:
                    server.failure = f"not ready after {limit_seconds:.0f} s"
            time.sleep(0.3)
        for server in group:
            if server.failure is not None:
                say(f"{server.name}: {server.failure}; the end of its log:\n" + _tail(server))
            else:
                say(f"{server.name}: ready after {server.ready_seconds} s")
        yield group
    finally:
        for server in group:
            server.stop()


def _tail(server: RunningServer, lines: int = 40) -> str:
    return "\n".join(server.log_since(0).splitlines()[-lines:])


def median_or_none(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 2) if values else None
