"""A server measures itself while it warms up, and goes by what it has found.

Runs beside the HTTP server, in the launcher, before the server says that it is ready; requests that come in all the
same are answered, and spoil the figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from specswitch.calibrate import cache
from specswitch.calibrate.measurements import Measurements, profile_of
from specswitch.calibrate.sweep import Client, Plan, Sweep
from specswitch.client import ServerClient
from specswitch.config import SwitchConfig
from specswitch.errors import CalibrationError

_LARGEST = 512
"""Decode batch sizes beyond which nothing is measured where no CUDA graph is."""
_PROMPT, _LONG_PROMPT, _LONG_ENOUGH = 64, 1024, 512
"""Tokens per request; the long one, at the largest batch that has room for it, tells what context costs."""
_OUTPUT, _LEAST_OUTPUT = 768, 320
"""Tokens per request: what a batch may put out in both modes before its requests end."""
_SHARE_OF_SLOTS = 0.9
_BUDGET_SECONDS = 60.0
"""After which no further batch size is begun."""
_UP_SECONDS = 120.0

Say = Callable[[str], None]


class Room(NamedTuple):
    """What a server can hold."""

    requests: int
    """Running at once."""
    slots: int
    """KV tokens of all requests."""
    tokens: int
    """Of one request."""

    def output(self, size: int, prompt_tokens: int) -> int:
        """Output tokens per request for which there is room, at most as many as are wanted."""
        share = int(_SHARE_OF_SLOTS * self.slots) // size
        return min(_OUTPUT, share - prompt_tokens, self.tokens - prompt_tokens)


def is_due(config: SwitchConfig) -> bool:
    """Whether a server so configured measures itself, should it have no profile yet."""
    automatic = config.mode in ("auto", "observe")
    return automatic and config.policy == "goodput" and not config.profile and config.calibrate != "never"


def calibrate(client: ServerClient, config: SwitchConfig, say: Say, warn: Say) -> None:
    """Give the server at ``client`` a profile unless it has one.  Never raises: what fails is said to ``warn``."""
    try:
        _await(client)
        info = client.info()
        status = client.status()
        if status["profile"] is not None and config.calibrate != "always":
            return
        began = time.perf_counter()
        room = Room(
            status["admission"]["max_running_requests"], status["admission"]["kv_slots"], int(info["max_req_input_len"])
        )
        try:
            client.warm_up()
            measured = measure(client, Measurements(client.key()), room, status["graph_sizes"], say)
        finally:
            client.pin("configured")
        path = cache.path_for(measured.key)
        cache.store(profile_of(measured), path)
        client.use_profile()
        say(f"done in {time.perf_counter() - began:.1f} s, the profile is {path}")
    except Exception as error:  # whatever it is, the server is to serve
        warn(f"The calibration at start failed, and the server goes by its watermarks: {error}")


def measure(
    client: Client,
    measured: Measurements,
    room: Room,
    graph_sizes: Sequence[int],
    say: Say,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> Measurements:
    """Both modes at the sizes that the server can hold, smallest first, into ``measured``.

    What the time or the server did not allow is left out.

    Raises:
        CalibrationError: not one batch size could be measured.
    """
    began = clock()
    sizes = sizes_for(room, graph_sizes)
    batches = [(size, _PROMPT) for size in sizes]
    batches += long_batch(room, sizes)
    for size, prompt_tokens in batches:
        if measured.windows and clock() - began > _BUDGET_SECONDS:
            say(f"out of time before {size} requests")
            break
        say(f"{size} requests, prompts of {prompt_tokens} tokens")
        plan = Plan([size], [prompt_tokens], room.output(size, prompt_tokens), 24, 0.2, 30.0)
        part = Measurements(measured.key)
        try:
            Sweep(client, plan, clock, sleep).run(part)
        except CalibrationError as error:
            if not measured.windows:
                raise
            say(f"left out {size} requests and more: {error}")
            break
        measured.add(part)
    return measured


def sizes_for(room: Room, graph_sizes: Sequence[int]) -> list[int]:
    """Powers of two, or the captured sizes next to them, up to what graphs and room allow; at least 1."""
    most = min(room.requests, int(_SHARE_OF_SLOTS * room.slots) // (_PROMPT + _LEAST_OUTPUT))
    captured = sorted(size for size in graph_sizes if size <= most)
    if not captured:
        return [size for size in (2**power for power in range(10)) if size <= min(most, _LARGEST)] or [1]
    chosen = {next(size for size in captured if size >= wanted) for wanted in _powers(captured[-1])}
    return sorted(chosen | {captured[-1]})


def long_batch(room: Room, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """The largest batch size with room for prompts long enough to tell what context costs, and their length in tokens.

    Empty where none of ``sizes`` has it.
    """
    for size in reversed(sizes):
        share = int(_SHARE_OF_SLOTS * room.slots) // size
        prompt_tokens = min(_LONG_PROMPT, share - _LEAST_OUTPUT, room.tokens - _LEAST_OUTPUT)
        if prompt_tokens >= _LONG_ENOUGH:
            return [(size, prompt_tokens)]
    return []


def _powers(upto: int) -> list[int]:
    return [2**power for power in range(upto.bit_length()) if 2**power <= upto]


def _await(client: ServerClient) -> None:
    until = time.monotonic() + _UP_SECONDS
    while True:
        try:
            client.status()
            return
        except CalibrationError:
            if time.monotonic() > until:
                raise
        time.sleep(0.25)
