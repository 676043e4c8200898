"""How many tokens a catch-up forward may cover so that nobody waits longer than allowed."""

from __future__ import annotations

import time
from collections.abc import Callable


class PauseBudget:
    """Tokens per forward for a pause of ``max_pause_ms``, by how long the running batch waited for earlier ones.

    It starts, unless told otherwise, from what an 8B target measured on an H200 (docs/benchmarks): a floor of 20 ms and
    22 microseconds a token.  What is measured scales both.  Under tensor parallelism every rank measures other times,
    and all have to write the same tokens: there rank 0's scale is put in force on all of them at once.
    """

    _LEAST_TOKENS = 32
    _SHARE = 0.85
    """Of the pause, for what is expected: waits scatter."""
    _FASTER = 8
    """Waits shorter than expected that count as much as a longer one."""
    _MOST_AT_ONCE = 1.25
    """The growth of the scale by one wait, which may have been long by chance."""
    _BOUND = 100.0

    def __init__(
        self, max_pause_ms: float, most_tokens: int, floor_ms: float = 20.0, ms_per_token: float = 0.022
    ) -> None:
        """``most_tokens``: what one forward may hold at all, SGLang's ``chunked_prefill_size``."""
        self._max_pause_ms = max_pause_ms
        self._most_tokens = most_tokens
        self._floor_ms = floor_ms
        self._ms_per_token = ms_per_token
        self.measured_scale = 1.0
        """Times measured over those assumed at first."""
        self.scale = 1.0
        """The one in force."""

    def tokens_for(self, requests: int) -> int:
        """Tokens that the next forward may cover, where so many requests run.

        However slow the machine, not fewer than it takes to get on: each request puts out a token between two forwards.
        """
        return max(self._tokens(self.scale), 3 * requests if self.keeps_up(requests) else 0)

    def last_tokens_for(self, requests: int) -> int:
        """Tokens that the last forward of a return may cover: the result in flight is waited for before it."""
        return self.tokens_for(requests) // 2

    def keeps_up(self, requests: int) -> bool:
        """Whether a forward may write well more than the plain step after it adds: of two tokens one may be left.

        By the times assumed at first: a machine that turns out slower does not make one large forward the better way.
        """
        return self._tokens(1.0) >= 3 * requests

    def _tokens(self, scale: float) -> int:
        room = max(0.0, self._SHARE * self._max_pause_ms / scale - self._floor_ms) / self._ms_per_token
        return min(self._most_tokens, max(self._LEAST_TOKENS, int(room)))

    def waited(self, tokens: int, milliseconds: float) -> None:
        """The running batch waited so long while a forward over ``tokens`` ran."""
        beyond = milliseconds / (self.measured_scale * (self._floor_ms + self._ms_per_token * tokens))
        if beyond > 1.0:
            change = min(beyond, self._MOST_AT_ONCE)
        else:
            change = max(beyond, 1.0 / self._BOUND) ** (1.0 / self._FASTER)
        self.measured_scale = min(max(self.measured_scale * change, 1.0 / self._BOUND), self._BOUND)


class PauseWatch:
    """How long the running batch waits for its next token while it is being caught up."""

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

    def begin(self) -> None:
        """A return has been asked for."""
        self.longest_ms = 0.0
        self._watching, self._since, self._covered, self._covered_before = True, None, None, None

    def end(self) -> None:
        """It is complete, or has been given up."""
        self._watching = False

    def disturbed(self) -> None:
        """Something else comes before the next result, so that the wait for that one says nothing."""
        self._since = None

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
        self._covered_before, self._covered = self._covered if self._overlap else None, None
        if since is None:
            return None
        waited = 1e3 * (now - since)
        self.longest_ms = max(self.longest_ms, waited)
        if not candidates:
            return None
        budget, tokens = max(candidates, key=lambda covered: covered[1])
        return budget, tokens, waited
