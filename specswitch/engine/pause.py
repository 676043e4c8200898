"""How many tokens a catch-up forward may cover so that nobody waits longer than allowed."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable
from itertools import combinations
from statistics import median
from typing import NamedTuple

_NO_FORWARD_MS = 10_000.0
"""Waits that no forward takes: the server was told to pause meanwhile."""


def _sizes(most: int) -> tuple[int, ...]:
    """The numbers of tokens that a forward may cover, in order: 32, 48, then four from each power of two to the next.

    The first forward of a size that the GPU has not seen waits, while it is launched, until the GPU has nothing left to
    do (``rehearsal``).  So there are few.
    """
    sizes, step = [32, 48], 16
    while 4 * step <= most:
        sizes += [4 * step, 5 * step, 6 * step, 7 * step]
        step *= 2
    return tuple(size for size in sizes if size <= most) or (most,)


class Waits(NamedTuple):
    """How long the running batch waits for its next token while a forward runs, by the tokens that this covers."""

    floor_ms: float
    ms_per_token: float
    largest: int
    """Tokens of the largest forward of which this is known, or was assumed."""

    def of(self, tokens: float) -> float:
        return self.floor_ms + self.ms_per_token * tokens


class PauseBudget:
    """Tokens per forward for a pause of ``max_pause_ms``, by how long the running batch waited for earlier ones.

    It starts, unless told otherwise, from what an 8B target measured on an H200 (docs/benchmarks): a floor of 20 ms and
    22 microseconds a token.  From then on both follow the latest waits, and forwards grow by one size at a time: how
    long a larger one takes shows two or three forwards later, once the GPU has fallen behind its launches.

    Under tensor parallelism every rank measures other times, and all have to write the same tokens: there rank 0's
    measure is put in force on all of them at once.
    """

    _SHARE = 0.8
    """Of the pause, for what is expected: waits scatter."""
    _OVER_FLOOR = 0.5
    """Of the floor, for the tokens of a forward at least: where no pause can be kept, smaller ones are no remedy."""
    _REMEMBERED = 16
    """Waits, the latest."""
    _HEARD_FROM = 3
    """Waits, before which what was assumed holds."""
    _APART = 0.5
    """Of the tokens of the larger of two forwards: less, and the difference tells what a token takes."""
    _LATEST = 3
    """Waits for large forwards by whose median a token is taken to add more at once: it does as contexts grow."""
    _KNOWN_BY = 3
    """Waits for forwards as large or larger; under overlap two may be for the same one."""

    def __init__(
        self, max_pause_ms: float, most_tokens: int, floor_ms: float = 20.0, ms_per_token: float = 0.022
    ) -> None:
        """``most_tokens``: what one forward may hold at all, SGLang's ``chunked_prefill_size``."""
        self._allowed_ms = self._SHARE * max_pause_ms
        self._sizes = _sizes(most_tokens)
        self._nominal = self._bounded(self._room(floor_ms, ms_per_token))
        self._assumed = Waits(floor_ms, ms_per_token, largest=self._nominal)
        self._seen: deque[tuple[int, float]] = deque(maxlen=self._REMEMBERED)
        self.measured = self.in_force = self._assumed

    def tokens_for(self, requests: int) -> int:
        """Tokens that the next forward may cover, where so many requests run.

        However slow the machine, not fewer than it takes to get on: each request puts out a token between two forwards.
        """
        waits = self.in_force
        at_least = min(self._nominal, self._OVER_FLOOR * waits.floor_ms / waits.ms_per_token)
        room = max(at_least, self._room(waits.floor_ms, waits.ms_per_token))
        tokens = self._bounded(min(room, self._larger_than(waits.largest)))
        return max(tokens, self.filled_up(3 * requests)) if self.keeps_up(requests) else tokens

    @property
    def sizes(self) -> tuple[int, ...]:
        """Every number of tokens that :meth:`tokens_for` may ever return."""
        most = self._bounded(self._allowed_ms / self._assumed.ms_per_token)
        return self._sizes[: self._sizes.index(most) + 1]

    def filled_up(self, tokens: int) -> int:
        """The smallest size that holds so many tokens; all of them where none of :attr:`sizes` does."""
        sizes = self.sizes
        return tokens if tokens > sizes[-1] else sizes[bisect_left(sizes, tokens)]

    def last_tokens_for(self, requests: int) -> int:
        """Tokens that the last forward of a return may cover: the result in flight is waited for before it."""
        return self.tokens_for(requests) // 2

    def keeps_up(self, requests: int) -> bool:
        """Whether a forward may write well more than the plain step after it adds: of two tokens one may be left.

        By the times assumed at first: a machine that turns out slower does not make one large forward the better way.
        """
        return self._nominal >= 3 * requests

    def _room(self, floor_ms: float, ms_per_token: float) -> float:
        return max(0.0, self._allowed_ms - floor_ms) / ms_per_token

    def _bounded(self, tokens: float) -> int:
        return self._sizes[max(0, bisect_right(self._sizes, tokens) - 1)]

    def _larger_than(self, tokens: int) -> int:
        """The size after the one that holds so many tokens."""
        return self._sizes[min(len(self._sizes) - 1, bisect_left(self._sizes, tokens) + 1)]

    def waited(self, tokens: int, milliseconds: float) -> None:
        """The running batch waited so long while a forward over ``tokens`` ran."""
        self._seen.append((tokens, milliseconds))
        if len(self._seen) >= self._HEARD_FROM:
            self.measured = self._fitted()

    def _fitted(self) -> Waits:
        """By medians, which a wait that was long by chance hardly moves (the line is Theil's and Sen's).

        A token is never taken to add less than assumed.  Small forwards wait for their launch and large ones for the
        GPU, so that a line through both may be all but flat, and would promise that still larger ones take no longer.
        """
        seen, assumed = self._seen, self._assumed
        slopes = [
            (ms - other_ms) / (tokens - other)
            for (tokens, ms), (other, other_ms) in combinations(seen, 2)
            if min(tokens, other) < self._APART * max(tokens, other)
        ]
        if slopes:
            slope = median(slopes)
        else:
            slope = assumed.ms_per_token * median(ms / assumed.of(tokens) for tokens, ms in seen)
        slope = max(slope, assumed.ms_per_token)
        floor = max(0.0, median(ms - slope * tokens for tokens, ms in seen))
        large = self._APART * max(tokens for tokens, _ in seen)
        latest = [(ms - floor) / tokens for tokens, ms in seen if tokens >= large][-self._LATEST :]
        known = sorted(tokens for tokens, _ in seen)[-self._KNOWN_BY]
        return Waits(floor, max(slope, median(latest)), max(known, assumed.largest))


class PauseWatch:
    """How long the running batch waits for its next token while it is being caught up."""

    _HIDDEN = 2
    """Tokens after the first forwards in a row that, with overlap, may hardly wait for the GPU: it has yet to fall
    behind.  Such a wait is heard if it is longer than expected all the same."""

    def __init__(self, overlap: bool, clock: Callable[[], float] = time.perf_counter) -> None:
        """``overlap``: a forward may delay the result of the step before it as well as that of the one after it."""
        self.longest_ms = 0.0
        """In the present return, or the latest."""
        self._overlap = overlap
        self._clock = clock
        self._watching = False
        self._since: float | None = None
        self._covered: tuple[PauseBudget, int] | None = None
        self._covered_before: tuple[PauseBudget, int] | None = None
        self._in_a_row = 0
        """Forwards, each with one token of the running batch after it."""

    def begin(self) -> None:
        """A return has been asked for."""
        self.longest_ms = 0.0
        self._watching, self._since, self._covered, self._covered_before = True, None, None, None
        self._in_a_row = 0

    def end(self) -> None:
        """It is complete, or has been given up."""
        self._watching = False

    def disturbed(self) -> None:
        """Something else comes before the next result, so that the wait for that one says nothing."""
        self._since, self._in_a_row = None, 0

    def wrote(self, budget: PauseBudget, tokens: int) -> None:
        """A forward over ``tokens``, as many as ``budget`` allowed, was launched."""
        if self._watching:
            self._covered = budget, tokens

    def token(self) -> tuple[PauseBudget, int, float] | None:
        """The running batch has its next token.

        Returns:
            The budget and the tokens of the larger forward that this may have waited for, and the milliseconds; None
            without any.
        """
        if not self._watching:
            return None
        now = self._clock()
        since, self._since = self._since, now
        candidates = [covered for covered in (self._covered, self._covered_before) if covered is not None]
        tokens_in_a_row = self._in_a_row + 1
        self._in_a_row = 0 if self._covered is None else tokens_in_a_row
        self._covered_before, self._covered = self._covered if self._overlap else None, None
        if since is None:
            return None
        waited = 1e3 * (now - since)
        if waited > _NO_FORWARD_MS:
            return None
        self.longest_ms = max(self.longest_ms, waited)
        if not candidates:
            return None
        budget, tokens = max(candidates, key=lambda covered: covered[1])
        if self._overlap and tokens_in_a_row <= self._HIDDEN and waited < budget.in_force.of(tokens):
            return None
        return budget, tokens, waited
