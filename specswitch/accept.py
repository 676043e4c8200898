"""Running mean of the accept length."""

from __future__ import annotations


class AcceptMeter:
    """Tokens per request and verify step, averaged over about the last ``window`` verify steps.

    Fed from counts that SGLang already holds on the CPU; plain steps are never fed, so they do not
    dilute it.
    """

    def __init__(self, window: int = 64) -> None:
        self._keep = 1.0 - 1.0 / window
        self._tokens = 0.0
        self._requests = 0.0
        self.value: float | None = None
        """Accept length, at least 1, or None before the first verify step."""

    def add(self, tokens: int, requests: int) -> None:
        """Count a verify step that put out ``tokens`` tokens, bonus tokens included, for ``requests`` requests."""
        if requests <= 0:
            return
        self._tokens = self._tokens * self._keep + tokens
        self._requests = self._requests * self._keep + requests
        self.value = self._tokens / self._requests
