"""What the Switch tells those who listen to it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from specswitch.machine import Transition


@dataclass(frozen=True, slots=True)
class TransitionRecord:
    """One transition that has been taken, with the load at which it was."""

    transition: Transition
    reason: str
    batch_size: int
    """Requests in the decode batch."""
    queue_length: int
    """Requests that wait to be prefilled."""
    accept_length: float | None
    """Running mean of tokens per request and verify step, None before the first."""
    step: int
    """Decode steps processed since start."""
    duration_ms: float
    """Wall-clock milliseconds since the change was asked for: for RETURN up to the first token after it."""
    slots_given_back: int = 0
    """KV slots allocated ahead for draft tokens that went back to the pool; ENTER_PLAIN alone."""
    tokens_caught_up: int = 0
    """Tokens whose draft KV was written by the catch-up; RETURN alone."""

    def as_dict(self) -> dict[str, Any]:
        """JSON-able: ``from``, ``to`` and the fields of the record."""
        fields = asdict(self)
        transition: Transition = fields.pop("transition")
        fields["accept_length"] = rounded(self.accept_length)
        fields["duration_ms"] = rounded(self.duration_ms)
        return {"from": transition.source.value, "to": transition.dest.value, **fields}


class StepCounts(NamedTuple):
    """Decode steps whose results have been processed."""

    speculative: int = 0
    plain: int = 0
    in_mode: int = 0
    """Since SPECULATIVE or PLAIN was last entered."""


def rounded(figure: float | None) -> float | None:
    """To three decimals, as figures appear in the log and in ``/server_info``."""
    return None if figure is None else round(figure, 3)
