"""The real SGLang HTTP server on a CPU, as a context manager."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specswitch.cpu_engine.environment import child_environment
from specswitch.cpu_engine.releases import DEFAULT_MODELS, ArgumentValue, Release, as_flags, installed_release


class ServerFailed(RuntimeError):  # noqa: N818  (what happened, as subprocess.CalledProcessError)
    """The server ended, or did not come up in time."""

    def __init__(self, message: str, returncode: int | None, log: str) -> None:
        super().__init__(message)
        self.returncode = returncode
        """Exit status; None when it was still starting."""
        self.log = log
        """All it had written."""


class CpuServer:
    """``python -m sglang.launch_server`` of one release, started on entry and stopped, children included, on exit.

    ``mode``, ``overlap``, ``page_size`` and further ``ServerArgs`` as for
    :class:`~specswitch.cpu_engine.inprocess.InProcessScheduler`; ``flags`` are appended to the command
    (``["--enable-specswitch"]``), ``env`` to the environment.  ``release`` and ``python`` name another environment than
    the one this process runs in, and go together.  ``port`` None takes a free one.  ``strict`` turns on SGLang's own
    memory checks.

    ``with CpuServer("eagle-topk1-v1") as server: server.generate("Once")``.  Entering raises :class:`ServerFailed`
    when the server ends before it is ready or is not ready within ``startup_timeout`` seconds.
    """

    def __init__(
        self,
        mode: str,
        models: Path | str = DEFAULT_MODELS,
        *,
        overlap: bool | None = None,
        page_size: int = 1,
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        log_path: Path | str | None = None,
        release: Release | None = None,
        python: Path | str | None = None,
        port: int | None = None,
        strict: bool = False,
        startup_timeout: float = 300.0,
        **server_args: ArgumentValue | None,
    ) -> None:
        if (release is None) != (python is None):
            raise ValueError("release and python name one environment together; give both or neither")
        self.release = installed_release() if release is None else release
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        arguments = self.release.server_arguments(mode, Path(models), overlap=overlap, page_size=page_size)
        arguments.update({name: value for name, value in server_args.items() if value is not None})
        # a warm-up request would be the first thing every count and log speaks of
        arguments.update(host="127.0.0.1", port=self.port, skip_server_warmup=True)
        self.command = [str(python or sys.executable), "-m", "sglang.launch_server", *as_flags(arguments), *flags]
        self.environment = {**child_environment(self.release, strict=strict), **(env or {})}
        if log_path is None:
            handle, log_path = tempfile.mkstemp(prefix=f"sglang-{self.release.version}-{mode}-", suffix=".log")
            os.close(handle)
        self.log_path = Path(log_path)
        self.startup_timeout = startup_timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def __enter__(self) -> CpuServer:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server and wait until it answers; see the class for what is raised."""
        if self._process is not None:
            raise RuntimeError(f"the server on {self.url} was started before")
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                self.command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        atexit.register(self.stop)
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server and every process it started; does nothing when it is not running.

        Answers under way are lost.  SGLang's own graceful exit looks for SIGTERM every 5 s and kills its tree in the
        end (managers/tokenizer_manager.py ``sigterm_watchdog``), and a CPU holds nothing that would need release.
        """
        process = self._process
        if process is None or self._stopped:
            return
        self._stopped = True
        atexit.unregister(self.stop)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    @property
    def returncode(self) -> int | None:
        """Exit status of the launcher, None while it runs or before it started."""
        return None if self._process is None else self._process.poll()

    def log(self) -> str:
        """All the server has written so far."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def get(self, path: str, timeout: float = 60.0) -> Any:
        """The JSON answer to ``GET path``; ``urllib.error.HTTPError`` for a status other than 200."""
        with urllib.request.urlopen(self.url + path, timeout=timeout) as response:
            return json.load(response)

    def post(self, path: str, body: Mapping[str, Any], timeout: float = 300.0) -> Any:
        """The JSON answer to ``POST path`` with a JSON body; ``urllib.error.HTTPError`` as :meth:`get`."""
        with self._open(path, body, timeout) as response:
            return json.load(response)

    def server_info(self) -> dict[str, Any]:
        """``GET /server_info``."""
        info: dict[str, Any] = self.get("/server_info")
        return info

    def generate(self, prompt: str | Sequence[int], max_new_tokens: int = 32, **sampling: Any) -> dict[str, Any]:
        """One greedy completion through ``/generate``; ``sampling`` are SGLang's sampling parameters, and
        ``return_logprob`` goes beside them.  A prompt may be token ids."""
        answer: dict[str, Any] = self.post("/generate", _generate_body(prompt, max_new_tokens, sampling))
        return answer

    def stream(
        self, prompt: str | Sequence[int], max_new_tokens: int = 32, **sampling: Any
    ) -> Iterator[dict[str, Any]]:
        """As :meth:`generate`, streamed: each event holds the answer so far.  Closing the iterator drops the
        connection, upon which SGLang aborts the request."""
        body = {**_generate_body(prompt, max_new_tokens, sampling), "stream": True}
        with self._open("/generate", body, 300.0) as response:
            for line in response:
                payload = line.decode().removeprefix("data:").strip()
                if payload and payload != "[DONE]":
                    yield json.loads(payload)

    def _open(self, path: str, body: Mapping[str, Any], timeout: float) -> Any:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        return urllib.request.urlopen(request, timeout=timeout)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self.startup_timeout
        while time.monotonic() < deadline:
            status = self.returncode
            if status is not None:
                raise ServerFailed(
                    f"SGLang {self.release.version} ended with exit status {status} before it was ready; "
                    f"its log ({self.log_path}) ends:\n{self._log_tail()}",
                    status,
                    self.log(),
                )
            with contextlib.suppress(OSError), urllib.request.urlopen(self.url + "/health", timeout=5):
                return
            time.sleep(0.2)
        raise ServerFailed(
            f"SGLang {self.release.version} was not ready within {self.startup_timeout:.0f} s; "
            f"its log ({self.log_path}) ends:\n{self._log_tail()}",
            None,
            self.log(),
        )

    def _log_tail(self, lines: int = 15) -> str:
        return "\n".join(self.log().splitlines()[-lines:])


def _generate_body(prompt: str | Sequence[int], max_new_tokens: int, sampling: dict[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = {"text": prompt} if isinstance(prompt, str) else {"input_ids": list(prompt)}
    if "return_logprob" in sampling:
        body["return_logprob"] = sampling.pop("return_logprob")
    body["sampling_params"] = {"temperature": 0, "max_new_tokens": max_new_tokens, **sampling}
    return body


def free_port() -> int:
    """A port nobody listens on, low enough for those that SGLang derives from it by adding up to 10000, and below
    the range that the kernel hands out by itself."""
    dice = random.SystemRandom()  # SGLang seeds the module's own, alike in every process that tests run in
    for _ in range(100):
        port = dice.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port between 20000 and 32000 was found in 100 tries")
