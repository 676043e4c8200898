"""Loads to replay: requests that arrive by themselves, or clients that each wait for their answer."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

from specswitch.errors import ReplayError


class Request(NamedTuple):
    """One request."""

    arrival: float
    """Seconds since the start of the load."""
    prompt_tokens: int
    output_tokens: int


Over = Callable[[float], float]
"""Something that changes with the seconds since the start of the load."""


class Load(Protocol):
    """What a server is offered."""

    @property
    def name(self) -> str:
        """As it is shown."""

    @property
    def duration(self) -> float:
        """Seconds after which the replay ends."""

    @property
    def accept_length(self) -> Over:
        """The accept length that the requests' text allows."""

    def arrivals(self, now: float, unfinished: int) -> list[Request]:
        """Requests that have come since the last call; ``unfinished`` earlier ones wait or run."""

    def next_arrival(self, now: float) -> float | None:
        """When to look again on an idle server, None when nothing more will come."""


@dataclass
class OpenLoop:
    """Requests that arrive at their own times, whatever the server does."""

    name: str
    requests: Sequence[Request]
    accept_length: Over
    duration: float
    _next: int = field(default=0, init=False)

    def arrivals(self, now: float, unfinished: int) -> list[Request]:
        start = self._next
        while self._next < len(self.requests) and self.requests[self._next].arrival <= now:
            self._next += 1
        return list(self.requests[start : self._next])

    def next_arrival(self, now: float) -> float | None:
        return self.requests[self._next].arrival if self._next < len(self.requests) else None


@dataclass
class ClosedLoop:
    """As many requests in flight as ``concurrency`` says; each finished one is followed by the next."""

    name: str
    concurrency: Over
    accept_length: Over
    duration: float
    prompt_tokens: Over = lambda now: 128
    output_tokens: int = 256
    """On average; each answer has between half and one and a half times as many."""
    _started: int = field(default=0, init=False)

    def arrivals(self, now: float, unfinished: int) -> list[Request]:
        wanted = round(self.concurrency(now)) - unfinished
        return [self._request(now) for _ in range(wanted)]

    def _request(self, now: float) -> Request:
        # The first requests would all end in the same step; real answers differ in length.
        share = (self._started * 0.618034) % 1.0
        self._started += 1
        return Request(now, round(self.prompt_tokens(now)), max(1, round(self.output_tokens * (0.5 + share))))

    def next_arrival(self, now: float) -> float | None:
        return now + 0.05


def between(*points: tuple[float, float]) -> Over:
    """Linear between ``(seconds, value)`` points, constant outside them."""

    def value(now: float) -> float:
        if now <= points[0][0]:
            return points[0][1]
        for (start, low), (end, high) in pairwise(points):
            if now < end:
                return low + (high - low) * (now - start) / (end - start)
        return points[-1][1]

    return value


def steps(first: float, *changes: tuple[float, float]) -> Over:
    """``first``, and from each ``(seconds, value)`` on that value."""

    def value(now: float) -> float:
        present = first
        for since, value in changes:
            if now < since:
                break
            present = value
        return present

    return value


def read_trace(path: Path, speed: float, accept_length: Over, minutes: float | None = None) -> OpenLoop:
    """A CSV of ``TIMESTAMP, ContextTokens, GeneratedTokens``, as AzurePublicDataset publishes them.

    Arrivals come ``speed`` times as fast as recorded; ``minutes`` keeps that much of the recording.

    Raises:
        ReplayError: the file cannot be read or lacks a column, a value is not what the column says, or no request is
            left.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [
                (_moment(row["TIMESTAMP"]), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
                for row in csv.DictReader(file)
            ]
    except OSError as error:
        raise ReplayError(f"The trace {path} cannot be read ({error.strerror}): correct the path.") from None
    except KeyError as error:
        raise ReplayError(
            f"The trace {path} has no column {error}: it needs TIMESTAMP, ContextTokens and GeneratedTokens."
        ) from None
    except (TypeError, ValueError) as error:
        raise ReplayError(f"The trace {path} holds a row that is no request ({error}): correct or remove it.") from None
    rows.sort()
    last = float("inf") if minutes is None else minutes * 60.0
    start = rows[0][0] if rows else 0.0
    requests = [
        Request((moment - start) / speed, max(prompt, 1), max(output, 1))
        for moment, prompt, output in rows
        if moment - start <= last
    ]
    if not requests:
        raise ReplayError(f"The trace {path} holds no request: choose another file.")
    return OpenLoop(f"{path.stem} x{speed:g}", requests, accept_length, max(requests[-1].arrival, 1e-3))


def _moment(stamp: str) -> float:
    # The traces carry seven decimals, more than fromisoformat takes before Python 3.11.
    whole, _, fraction = stamp.partition(".")
    return datetime.fromisoformat(whole).timestamp() + (float(f"0.{fraction}") if fraction else 0.0)
