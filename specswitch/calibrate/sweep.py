"""Time decode steps of a running server at chosen batch sizes, pinned to one mode and then to the other.

From outside, a step's seconds are those between two looks at ``/server_info`` over the decode steps counted between
them; nothing is prefilled meanwhile, since all requests of a batch start together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from specswitch.calibrate.measurements import Measurements, Switched, Window
from specswitch.control import PinName
from specswitch.errors import CalibrationError
from specswitch.signals import Mode

_PINS: dict[Mode, PinName] = {Mode.PLAIN: "plain", Mode.SPECULATIVE: "speculative"}


class Client(Protocol):
    """What a sweep needs of a server."""

    def status(self) -> dict[str, Any]: ...

    def pin(self, name: PinName) -> None: ...

    def requests(self, count: int, prompt_tokens: int, output_tokens: int) -> AbstractContextManager[None]: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure."""

    sizes: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256)
    """Decode batch sizes; best those of the captured CUDA graphs."""
    prompt_tokens: Sequence[int] = (128, 1024)
    """Per request.  Two lengths or more give the cost of context."""
    output_tokens: int = 2048
    """At most, per request; a window ends before."""
    window_steps: int = 48
    """Least decode steps per window."""
    window_seconds: float = 0.5
    """Least seconds per window."""
    patience_seconds: float = 120.0
    """Until a batch runs, or a mode is reached."""


class Sweep:
    """One pass over a plan."""

    def __init__(
        self,
        client: Client,
        plan: Plan,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._plan = plan
        self._clock = clock
        self._sleep = sleep

    def run(self, measurements: Measurements, progress: Callable[[str], None] = lambda what: None) -> None:
        """Measure every batch size and prompt length of the plan into ``measurements``.

        Raises:
            CalibrationError: the server cannot be pinned, or a batch did not come about or did not last.
        """
        try:
            for size in self._plan.sizes:
                for prompt_tokens in self._plan.prompt_tokens:
                    progress(f"{size} requests, prompts of {prompt_tokens} tokens")
                    self._measure(measurements, size, prompt_tokens)
        finally:
            self._client.pin("configured")

    def _measure(self, measurements: Measurements, size: int, prompt_tokens: int) -> None:
        with self._client.requests(size, prompt_tokens, self._plan.output_tokens):
            self._await(lambda status: status["batch_size"] == size and not status["queue_length"], f"{size} requests")
            for mode in _PINS:
                self._switch(mode, measurements)
                measurements.windows.append(self._window(mode, size, prompt_tokens))

    def _switch(self, mode: Mode, measurements: Measurements) -> None:
        before = self._client.status()
        self._client.pin(_PINS[mode])
        after = self._await(lambda status: status["mode"] == mode.value, f"{mode.value} mode")
        last = after["last_transition"]
        if before["mode"] != mode.value and last is not None and last["to"] == mode.value:
            measurements.switches.append(Switched(mode, last["duration_ms"] / 1e3, last["tokens_caught_up"]))

    def _window(self, mode: Mode, size: int, prompt_tokens: int) -> Window:
        plan = self._plan
        first, began = self._client.status(), self._clock()
        while True:
            self._sleep(plan.window_seconds / 4)
            last, ended = self._client.status(), self._clock()
            if last["batch_size"] != size or last["mode"] != mode.value:
                raise CalibrationError(
                    f"{size} requests with prompts of {prompt_tokens} tokens did not stay together for"
                    f" {plan.window_steps} decode steps in {mode.value}: raise --output-tokens, or leave out what the"
                    " server cannot hold."
                )
            steps = last["steps"][mode.value] - first["steps"][mode.value]
            if steps >= plan.window_steps and ended - began >= plan.window_seconds:
                break
        return Window(
            mode=mode,
            batch_size=size,
            context_tokens=(first["context_tokens"] + last["context_tokens"]) / 2,
            seconds=(ended - began) / steps,
            steps=steps,
            accept_length=last["accept_length"] if mode is Mode.SPECULATIVE else None,
        )

    def _await(self, reached: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        until = self._clock() + self._plan.patience_seconds
        while True:
            status = self._client.status()
            if reached(status):
                return status
            if self._clock() > until:
                raise CalibrationError(
                    f"The server did not come to {what} within {self._plan.patience_seconds:g} s (batch"
                    f" {status['batch_size']}, queue {status['queue_length']}, {status['mode']}): see that nothing"
                    " else uses it and that it can hold so many."
                )
            self._sleep(0.02)
