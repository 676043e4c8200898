"""Counts of what was done about the draft's KV; shown in ``/server_info`` under ``specswitch.draft_kv``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class DraftStats:
    tokens_missed: int = 0
    """Tokens without draft KV that returns came upon: written since then, in either way, or skipped."""
    tokens_caught_up: int = 0
    """Tokens that the last forward of a return covered."""
    tokens_caught_up_aside: int = 0
    """Tokens covered by forwards of target and draft between plain steps."""
    tokens_written_alone: int = 0
    """Tokens whose draft KV the draft wrote without the target running again, reused prefixes included."""
    tokens_skipped: int = 0
    """Tokens left without draft KV: cold returns, and requests that were not worth it."""
    requests_not_worth_it: int = 0
    """Requests that returns left as they were, because they had few tokens left to generate."""
    requests_left_out: int = 0
    """Requests that returns left as they were for the time being, to look at a sample of the others."""
    seconds_catching_up: float = 0.0
    """Seconds of the scheduler thread in the forwards of returns and in those between plain steps."""
    prefix_tokens_filled: int = 0
    """Tokens of reused prefixes whose draft KV was written by the prefill that reused them, or just before it."""
    prefix_tokens_skipped: int = 0
    """Tokens of reused prefixes left without draft KV."""
    asides: int = 0
    longest_aside_ms: float = 0.0
    """Milliseconds of the scheduler thread; on a GPU under overlap that is the launch alone."""

    def pause(self, tokens: int, milliseconds: float) -> None:
        """A forward of target and draft beside the running batch covered ``tokens``."""
        self.tokens_caught_up_aside += tokens
        self._count_aside(milliseconds)

    def pause_alone(self, tokens: int, milliseconds: float) -> None:
        """A forward of the draft alone covered ``tokens``."""
        self.tokens_written_alone += tokens
        self._count_aside(milliseconds)

    def _count_aside(self, milliseconds: float) -> None:
        self.asides += 1
        self.longest_aside_ms = max(self.longest_aside_ms, milliseconds)
        self.seconds_catching_up += milliseconds / 1e3

    def as_dict(self) -> dict[str, Any]:
        rounded = {name: round(getattr(self, name), 3) for name in ("seconds_catching_up", "longest_aside_ms")}
        return {**asdict(self), **rounded}
