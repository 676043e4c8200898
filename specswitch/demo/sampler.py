"""What a server said of itself and what its client saw, a few times a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from specswitch.demo.load import Load


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at ``/server_info`` (``internal_states[0]["specswitch"]``) and at the load."""

    seconds: float
    """Since the sampler was made."""
    concurrency: int
    """Users that go on asking."""
    in_flight: int
    """Requests not answered in full."""
    tokens: int
    """Tokens received since start."""
    mode: str
    batch_size: int
    queue_length: int
    accept_length: float | None
    transitions: int
    """Taken since the server's start."""


class Sampler:
    """Takes samples until told to stop, and hands each to ``heard``."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        load: Load,
        heard: Callable[[Sample], None],
        interval: float = 0.25,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._load = load
        self._heard = heard
        self._interval = interval
        self._clock = clock
        self._start = clock()

    async def run(self) -> None:
        """Sample for ever; cancel to stop.  Raises what :mod:`httpx` raises when the server fails."""
        while True:
            self._heard(await self.take())
            await asyncio.sleep(self._interval)

    async def take(self) -> Sample:
        """One sample now."""
        response = await self._client.get("/server_info")
        response.raise_for_status()
        status = response.json()["internal_states"][0]["specswitch"]
        return Sample(
            seconds=round(self._clock() - self._start, 3),
            concurrency=self._load.concurrency,
            in_flight=self._load.in_flight,
            tokens=self._load.tokens,
            mode=status["mode"],
            batch_size=status["batch_size"],
            queue_length=status["queue_length"],
            accept_length=status["accept_length"],
            transitions=status["transitions"],
        )
