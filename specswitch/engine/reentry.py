"""The accept length right after each return to SPECULATIVE, beside the one that the server has in the long run.

A draft whose KV cache was not brought back well drafts worse at first: the first figure then lies below the second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from specswitch.engine.pause import PauseWatch
from specswitch.records import rounded

FIRST_STEPS = 32
"""Verify steps that count as right after a return."""


@dataclass(frozen=True, slots=True)
class ReentryRecord:
    """One return with what followed it; logged as ``specswitch.reentry``."""

    requests: int
    """Requests that were decoded plainly before it and speculatively after it."""
    tokens_caught_up: int
    """Tokens whose draft KV was written for it, by its last forward and by those before."""
    tokens_skipped: int
    """Tokens left without draft KV."""
    requests_not_worth_it: int
    """Requests that were not caught up because they had few tokens left to generate."""
    verify_steps: int
    """Verify steps that ``accept_length`` covers: fewer than :data:`FIRST_STEPS` if PLAIN was entered before."""
    accept_length: float | None
    """Tokens per request and verify step in them, None without any."""
    long_run_accept_length: float | None
    """The same over all other verify steps since start, None without any."""
    longest_wait_ms: float
    """The longest that its requests waited for a token on the way back, where no prefill came in between."""
    requests_left_out: int = 0
    """Requests that were to be caught up later, if this look at a sample of the others finds it to be worth it."""

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        lengths = ("accept_length", "long_run_accept_length")
        return {**asdict(self), **{name: rounded(getattr(self, name)) for name in lengths}}


class Reentry:
    """Counts verify steps apart: the first ones after a return, and all others.

    A return with no request running is none: whoever is prefilled next has not missed anything.
    """

    def __init__(self, wait: PauseWatch) -> None:
        self._wait = wait
        self.report: Callable[[ReentryRecord], None] = _say_nothing
        """Told of each return once its first steps are over."""
        self.latest: ReentryRecord | None = None
        self._steps_left = 0
        self._tokens = self._request_steps = 0
        self._later_tokens = self._later_request_steps = 0
        self._requests = self._caught_up = self._skipped = self._not_worth_it = self._left_out = 0
        self._lengths = 0.0
        self._returns = 0

    def covered(self, tokens: int) -> None:
        """A forward beside the running batch wrote draft KV that a return would miss."""
        self._caught_up += tokens

    def caught_up(self, tokens: int, skipped: int, not_worth_it: int, left_out: int) -> int:
        """What a return's last forward does, just before or after :meth:`returned`; returns the tokens that had been
        missing, those :meth:`covered` since the last return included."""
        self._caught_up += tokens
        self._skipped += skipped
        self._not_worth_it += not_worth_it
        self._left_out += left_out
        return self._caught_up + self._skipped

    @property
    def tokens_caught_up(self) -> int:
        """For the present return, or the next one, so far."""
        return self._caught_up

    def returned(self, requests: int) -> None:
        """SPECULATIVE goes on with this many requests of the PLAIN batch."""
        self._requests = requests
        self._steps_left = FIRST_STEPS if requests else 0

    def verified(self, tokens: int, requests: int) -> None:
        """A verify step put out ``tokens`` tokens, bonus tokens included, for ``requests`` requests."""
        if not self._steps_left:
            self._later_tokens += tokens
            self._later_request_steps += requests
            return
        self._tokens += tokens
        self._request_steps += requests
        self._steps_left -= 1
        if not self._steps_left:
            self._close(FIRST_STEPS)

    def left(self) -> None:
        """PLAIN is entered: report what there was of the first steps, and start anew."""
        if self._steps_left:
            steps, self._steps_left = FIRST_STEPS - self._steps_left, 0
            self._close(steps)
        self._caught_up = self._skipped = self._not_worth_it = self._left_out = 0

    def _close(self, steps: int) -> None:
        length = _ratio(self._tokens, self._request_steps)
        if length is not None:
            self._returns += 1
            self._lengths += length
        self.latest = ReentryRecord(
            requests=self._requests,
            tokens_caught_up=self._caught_up,
            tokens_skipped=self._skipped,
            requests_not_worth_it=self._not_worth_it,
            verify_steps=steps,
            accept_length=length,
            long_run_accept_length=self._long_run,
            longest_wait_ms=round(self._wait.longest_ms, 3),
            requests_left_out=self._left_out,
        )
        self._tokens = self._request_steps = 0
        self.report(self.latest)

    @property
    def _long_run(self) -> float | None:
        return _ratio(self._later_tokens, self._later_request_steps)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able state for ``/server_info``."""
        return {
            "latest": None if self.latest is None else self.latest.as_dict(),
            "returns_measured": self._returns,
            "mean_accept_length": rounded(_ratio(self._lengths, self._returns)),
            "long_run_accept_length": rounded(self._long_run),
        }


def _ratio(total: float, count: int) -> float | None:
    return total / count if count else None


def _say_nothing(record: ReentryRecord) -> None:
    """What is told before somebody listens."""
