"""How many tokens a catch-up forward may cover so that nobody waits longer than allowed."""

from __future__ import annotations


class PauseBudget:
    """Tokens per forward for a pause of ``max_pause_ms``, from what earlier forwards took.

    It starts, unless told otherwise, from what an 8B target measured on an H200 (docs/benchmarks): a floor of 20 ms and
    22 microseconds a token.  Under tensor parallelism ranks would measure different times and must not be fed: the
    budget then stays what it was at the start.
    """

    _LEAST_TOKENS = 32
    _SHARE = 0.85
    """Of the pause for the forward: the plain step beside which it runs lies in the same gap between two tokens."""

    def __init__(
        self, max_pause_ms: float, most_tokens: int, floor_ms: float = 20.0, ms_per_token: float = 0.022
    ) -> None:
        """``most_tokens``: what one forward may hold at all, SGLang's ``chunked_prefill_size``."""
        self._max_pause_ms = max_pause_ms
        self._most_tokens = most_tokens
        self._floor_ms = floor_ms
        self._ms_per_token = ms_per_token

    @property
    def tokens(self) -> int:
        """Tokens that the next forward may cover."""
        room = max(0.0, self._SHARE * self._max_pause_ms - self._floor_ms) / self._ms_per_token
        return min(self._most_tokens, max(self._LEAST_TOKENS, int(room)))

    @property
    def last_tokens(self) -> int:
        """Tokens that the last forward of a return may cover: the result in flight is waited for before it."""
        return self.tokens // 2

    def took(self, tokens: int, milliseconds: float) -> None:
        """A forward over ``tokens`` took so long; a slower one counts at once, a faster one by and by."""
        measured = max(0.001, milliseconds - self._floor_ms) / max(1, tokens)
        if measured > self._ms_per_token:
            self._ms_per_token = measured
        else:
            self._ms_per_token += (measured - self._ms_per_token) / 8
