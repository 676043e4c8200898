"""What one scheduler turn looked like, in numbers a policy may use.

Under tensor parallelism every rank runs its own scheduler and must reach the same decision, so a
:class:`LoadSample` keeps what is identical on every rank apart from what only this process saw
(:class:`LocalReadings`).  A policy may steer by the former alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol


class Mode(str, Enum):
    """The state of the switch, named as in the log and in ``/server_info``."""

    SPECULATIVE = "SPECULATIVE"
    DRAINING = "DRAINING"
    PLAIN = "PLAIN"


class StepReading(NamedTuple):
    """One processed decode step, as the process that ran it saw it."""

    mode: Mode
    """SPECULATIVE or PLAIN: how the batch was decoded."""
    batch_size: int
    context_tokens: int
    """KV tokens of these requests, prompts included, before the step; 0 where the engine does not count them."""
    tokens: int
    """Tokens put out over the whole batch, bonus tokens included."""
    seconds: float | None = None
    """Wall-clock seconds from the previous decode result to this one, or None where something else (a prefill,
    a switch, an idle turn) came between."""
    uncounted: int = 0
    """Of the requests, those that do not show how well the draft guesses: left out by a return, in such a look just
    joined, or ended."""
    uncounted_tokens: int = 0
    """Of the tokens, theirs."""


@dataclass(frozen=True, slots=True)
class LocalReadings:
    """Readings of this process alone.

    A policy that steers by them decides on one rank for all: see :mod:`specswitch.ranks`.
    """

    steps: tuple[StepReading, ...] = ()
    """Decode steps processed since the previous sample, oldest first; none where no policy reads them."""


class BatchTokens(Protocol):
    """What takes a look at every request to know.

    It is counted when it is read, so a policy reads it only where it decides something, and in the sample's own turn.
    """

    @property
    def context_tokens(self) -> int:
        """KV tokens of the requests in the decode batch, prompts included; 0 where the engine does not count them."""

    @property
    def missed_tokens(self) -> int:
        """Of these, the tokens that a catch-up would have to write into the draft's KV cache."""

    @property
    def missed_by_each(self) -> Sequence[int]:
        """The same of each request that a sample may hold, the fewest first."""


class KnownTokens(NamedTuple):
    """:class:`BatchTokens` that have been counted."""

    context_tokens: int = 0
    missed_tokens: int = 0
    missed_by_each: Sequence[int] = ()


class SampleLook(NamedTuple):
    """A stay in SPECULATIVE for which a return has caught up a sample of the requests and left the others out."""

    left_out: int
    """Requests that have not ended and are to be caught up later."""
    sampled: int
    """Requests of the sample that have not ended."""
    steps: int
    """Verify steps that the accept lengths cover."""
    accept_lengths: Sequence[float]
    """Of each request of the sample that has been in all of these steps; empty before the first."""


class LoadSample(NamedTuple):
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
    batch: BatchTokens = KnownTokens()
    local: LocalReadings = LocalReadings()
    look: SampleLook | None = None
    """None where the draft has been brought up to date for all whom it pays to catch up."""


SAMPLING_FEATURES = frozenset({"grammar", "logprobs", "penalties", "logit_bias", "min_p", "hidden_states"})
"""Names under which a request's demands on sampling are counted."""
