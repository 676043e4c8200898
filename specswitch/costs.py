"""What a decode step costs in each mode, what it yields, and what a change of mode costs.

The quantity compared is goodput, tokens put out per second, as SmartSpec and TurboSpec use it to choose a draft
length; the cost of going back to speculation is Nightjar's restart cost.  ``docs/goodput.md`` names both and gives
the formulas.  Seconds and tokens throughout, no state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple


class StepPoint(NamedTuple):
    """A measured decode step."""

    batch_size: int
    context_tokens: float
    """KV tokens of the whole batch, averaged over the steps measured."""
    seconds: float


class StepTime:
    """Seconds of a decode step by decode batch size and context.

    Piecewise linear in the batch size through the measured points, never falling, and going on beyond the last point
    with the last slope; linear in the batch's context tokens, since attention reads each token's KV once a step.

    Raises:
        ValueError: no point, a batch size given twice or below 1, or a point that its context alone would explain.
    """

    def __init__(self, points: Sequence[StepPoint], seconds_per_context_token: float) -> None:
        ordered = sorted(points)
        sizes = [point.batch_size for point in ordered]
        if not ordered or sizes[0] < 1 or len(set(sizes)) != len(sizes):
            raise ValueError("a step-time curve needs points at different batch sizes of at least 1")
        without_context = [point.seconds - seconds_per_context_token * point.context_tokens for point in ordered]
        if min(without_context) <= 0 or seconds_per_context_token < 0:
            raise ValueError("the seconds per context token leave no time for the step itself")
        self.per_context_token = seconds_per_context_token
        self.largest = sizes[-1]
        """The largest batch size measured."""
        self._sizes = sizes
        self._seconds = list(accumulate(without_context, max))
        spans = zip(self._seconds, self._seconds[1:], sizes, sizes[1:], strict=False)
        self._slopes = [0.0, *((high - low) / (upto - start) for low, high, start, upto in spans)]
        self._slopes.append(self._slopes[-1])

    def seconds(self, batch_size: float, context_tokens: float) -> float:
        """Predicted seconds of one step."""
        above = bisect_right(self._sizes, batch_size)
        at = max(above - 1, 0)
        rise = self._slopes[above] * (batch_size - self._sizes[at]) if above else 0.0
        return self._seconds[at] + rise + self.per_context_token * context_tokens


@dataclass(frozen=True, slots=True)
class SwitchCost:
    """Seconds without a token that a change of mode costs."""

    drain: float
    """SPECULATIVE -> PLAIN: the bubble while the last result is waited for."""
    restart: float
    """PLAIN -> SPECULATIVE, whatever there is to catch up."""
    catch_up_per_token: float
    """PLAIN -> SPECULATIVE, per token whose draft KV has to be written."""

    def to_speculative(self, missed_tokens: float) -> float:
        return self.restart + self.catch_up_per_token * missed_tokens

    def there_and_back(self, missed_tokens: float) -> float:
        """A stay in PLAIN that leaves ``missed_tokens`` behind, both switches together."""
        return self.drain + self.to_speculative(missed_tokens)


def break_even_accept_length(plain_seconds: float, speculative_seconds: float) -> float:
    """The accept length at which both modes put out equally many tokens per second."""
    return speculative_seconds / plain_seconds


def advantage(accept_length: float, plain_seconds: float, speculative_seconds: float) -> float:
    """Goodput of SPECULATIVE over that of PLAIN: above 1, speculation is the faster mode.

    A plain step puts out one token per request, a verify step ``accept_length`` of them, so that the batch size
    cancels out.
    """
    return accept_length * plain_seconds / speculative_seconds


def break_even_batch_size(
    plain: StepTime, speculative: StepTime, accept_length: float, context_per_request: float, largest: int
) -> int:
    """The largest batch size, of 1 to ``largest``, at which speculation wins; 0 where it wins nowhere."""
    for size in range(largest, 0, -1):
        context = context_per_request * size
        if advantage(accept_length, plain.seconds(size, context), speculative.seconds(size, context)) > 1.0:
            return size
    return 0


def seconds_lost(seconds: float, other_over_here: float) -> float:
    """Of ``seconds`` decoded here, those the other mode would have saved for the same tokens; negative if it is slower.

    ``other_over_here`` is the other mode's goodput over this one's.
    """
    return seconds * (1.0 - 1.0 / other_over_here)
