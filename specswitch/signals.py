"""What one scheduler turn looked like, in numbers a policy may use.

Under tensor parallelism every rank runs its own scheduler and must reach the same decision, so a
:class:`LoadSample` keeps what is identical on every rank apart from what only this process saw
(:class:`LocalReadings`).  A policy may steer by the former alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Mode(str, Enum):
    """The state of the switch, named as in the log and in ``/server_info``."""

    SPECULATIVE = "SPECULATIVE"
    DRAINING = "DRAINING"
    PLAIN = "PLAIN"


@dataclass(frozen=True, slots=True)
class LocalReadings:
    """Readings of this process alone; never to be steered by."""

    token_usage: float = 0.0
    """Share of the KV slots in use, 0 to 1."""


@dataclass(frozen=True, slots=True)
class LoadSample:
    """One scheduler turn, taken before its batch is chosen."""

    mode: Mode
    decode_batch_size: int
    """Unfinished requests that the next decode batch would hold, freshly prefilled ones included."""
    queue_length: int
    """Requests that wait to be prefilled."""
    decode_step: int
    """Decode steps whose results have been processed since start, in any mode."""
    steps_in_mode: int
    """Of these, the steps since SPECULATIVE or PLAIN was last entered."""
    accept_length: float | None
    """Running mean of tokens per request and verify step (1 = no draft token accepted), or None
    before the first verify step."""
    sampling_features: frozenset[str] = frozenset()
    """Features that the running requests' sampling uses, of :data:`SAMPLING_FEATURES`."""
    local: LocalReadings = field(default_factory=LocalReadings)


SAMPLING_FEATURES = frozenset({"grammar", "logprobs", "penalties", "logit_bias", "min_p", "hidden_states"})
"""Names under which a request's demands on sampling are counted."""
