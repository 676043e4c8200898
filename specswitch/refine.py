"""What served steps teach: corrections of the calibrated step times, and the running accept length.

Both follow what they are shown for ever: old readings lose their weight by count, never by being declared good.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from functools import cache
from math import exp, log, log2

from specswitch.costs import StepTime


class RunningMedian:
    """The median of the last ``window`` values.

    A value that stands far out moves it no further than one that stands just above it, so a reading spoilt by a
    prefill, a pause of the process or the clock counts as one vote.
    """

    def __init__(self, window: int = 31) -> None:
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        self._window = window

    def add(self, value: float) -> None:
        if len(self._recent) == self._window:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._recent.append(value)
        insort(self._sorted, value)

    def __len__(self) -> int:
        return len(self._recent)

    @property
    def value(self) -> float:
        """Raises IndexError while empty."""
        middle = len(self._sorted) // 2
        return self._sorted[middle] if len(self._sorted) % 2 else sum(self._sorted[middle - 1 : middle + 1]) / 2


class RefinedStepTime:
    """A calibrated curve, corrected by the steps that were served.

    The batch sizes are parted into buckets, two per doubling.  Each keeps the median of its latest readings over the
    curve's predictions, and is heard from its fifth reading on.  The correction at a batch size is the mean of its own
    and its neighbours' medians, on a logarithmic scale, weighted by their readings and by half for each bucket away;
    the calibration counts as ``trust`` readings without correction, and no correction goes beyond a factor of
    ``bound``.
    """

    _HEARD_FROM = 5
    _RECONSIDERED_EVERY = 8

    def __init__(self, curve: StepTime, trust: float = 2.0, bound: float = 4.0) -> None:
        self.curve = curve
        self.readings = 0
        """Readings taken in since start."""
        self._trust = trust
        self._bound = log(bound)
        self._buckets: dict[int, RunningMedian] = {}
        self._corrections: dict[int, tuple[float, float]] = {}

    def add(self, batch_size: int, context_tokens: float, seconds: float) -> None:
        """Take in a step that took ``seconds``; what is not a time or a batch is passed over."""
        if batch_size < 1 or not 0.0 < seconds < float("inf"):
            return
        at = _bucket(batch_size)
        bucket = self._buckets.get(at)
        if bucket is None:
            bucket = self._buckets[at] = RunningMedian()
        bucket.add(log(seconds / self.curve.seconds(batch_size, context_tokens)))
        self.readings += 1
        if len(bucket) <= self._HEARD_FROM or self.readings % self._RECONSIDERED_EVERY == 0:
            self._corrections.clear()

    def seconds(self, batch_size: int, context_tokens: float) -> float:
        """Predicted seconds of one step."""
        return self.curve.seconds(batch_size, context_tokens) * self.correction(batch_size)

    def correction(self, batch_size: int) -> float:
        """The factor on the curve's prediction."""
        return self._known(batch_size)[0]

    def calibrated_share(self, batch_size: int) -> float:
        """How much of the prediction at a batch size is owed to the calibration and not to readings, 0 to 1."""
        return self._known(batch_size)[1]

    def _known(self, batch_size: int) -> tuple[float, float]:
        at = _bucket(batch_size)
        known = self._corrections.get(at)
        if known is None:
            total = 0.0
            weights = self._trust
            for bucket, median in self._buckets.items():
                if len(median) < self._HEARD_FROM:
                    continue
                weight = len(median) * 0.5 ** abs(bucket - at)
                total += weight * median.value
                weights += weight
            correction = exp(max(-self._bound, min(self._bound, total / weights)))
            known = self._corrections[at] = correction, self._trust / weights
        return known


@cache
def _bucket(batch_size: int) -> int:
    return round(2.0 * log2(batch_size))


class AcceptEstimate:
    """The running accept length: tokens per request and verify step.

    Two means are kept.  The short one reaches back over about ``requests`` requests verified, since a step of many
    requests says more than a step of one, and over at least ``shortest`` and at most ``longest`` steps.  The long one
    reaches ``memory`` times further.  It is the value, until the short one stands further away from it than chance
    explains; then the text has changed, and both start anew.  Chance is what the requests' own tokens vary by, and what
    a step's mean varies by beyond that, because requests have something in common.  So a steady text is known well and
    a new one soon: of a change by 2 tokens a tenth is left after 4 steps with 16 or more requests in the batch, after 5
    with 8 and after 12 with 2, at these defaults.
    """

    _BY_CHANCE = 3.0
    """Standard errors of the short mean that chance explains."""

    def __init__(
        self,
        prior: float,
        most: float = 16.0,
        requests: int = 128,
        shortest: int = 8,
        longest: int = 32,
        memory: int = 16,
    ) -> None:
        """``most``: the accept length when every draft token is accepted."""
        self.value = prior
        """Tokens per request and verify step; the prior before the first."""
        self._recent = prior
        self._variance = 1.0
        """Of the tokens of one request in one step."""
        self._widest = (0.5 * (most - 1.0)) ** 2
        """The largest variance that numbers from 1 to ``most`` can have."""
        self._shared = 0.0
        """Of a step's mean, beyond what its requests' variance explains: by what they have in common."""
        self._last: tuple[float, int] | None = None
        self._doubt = 0.0
        self._requests = requests
        self._shortest = shortest
        self._longest = longest
        self._memory = memory
        self._evidence = self._recent_evidence = 4.0
        """Steps that the two means stand for."""

    def add(self, tokens: int, requests: int) -> None:
        """Take in a verify step that put out ``tokens`` for ``requests`` requests."""
        if requests < 1:
            return
        reach = min(max(self._requests / requests, self._shortest), self._longest)
        longer = self._memory * reach
        seen = tokens / requests
        if self._last is not None:  # from step to step, so that a change of text counts once
            self._spread(seen, requests, *self._last, longer)
        self._last = seen, requests
        of_a_step = self._variance / requests + max(0.0, self._shared)
        if self._doubt:
            self._keep(of_a_step / self._doubt)
            self._doubt = 0.0
        self._recent_evidence = min(self._recent_evidence + 1.0, reach)
        self._evidence = min(self._evidence + 1.0, longer)
        self._recent += (seen - self._recent) / self._recent_evidence
        self.value += (seen - self.value) / self._evidence
        error = of_a_step / (2.0 * self._recent_evidence - 1.0)
        if (self._recent - self.value) ** 2 > self._BY_CHANCE**2 * error:
            self.value = self._recent
            self._keep(of_a_step)

    def doubt(self, trust: float) -> None:
        """The text may have changed unseen, with a chance of 1 - ``trust`` (0 to 1).

        The present value then counts no more than as many steps as tell it within the change to be expected: by one
        token, with that chance.
        """
        self._doubt = max(self._doubt, 1.0 - trust)

    def _keep(self, steps: float) -> None:
        """Let what is known count no more than so many steps."""
        self._evidence, self._recent_evidence = min(self._evidence, steps), min(self._recent_evidence, steps)

    def _spread(self, seen: float, requests: int, seen_then: float, requests_then: int, longer: float) -> None:
        apart, by_requests = (seen - seen_then) ** 2, 1.0 / requests + 1.0 / requests_then
        spread = min(apart / by_requests, self._BY_CHANCE**2 * self._variance)
        self._variance = min(self._variance + (spread - self._variance) / longer, self._widest)
        self._shared += (0.5 * (apart - self._variance * by_requests) - self._shared) / longer
