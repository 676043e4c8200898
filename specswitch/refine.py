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
        self._corrections: dict[int, float] = {}

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
            known = exp(max(-self._bound, min(self._bound, total / weights)))
            self._corrections[at] = known
        return known


@cache
def _bucket(batch_size: int) -> int:
    return round(2.0 * log2(batch_size))


class AcceptEstimate:
    """The running accept length: tokens per request and verify step.

    A step of many requests says more than a step of one, so the mean reaches back over about ``requests`` requests
    verified, and over at least ``shortest`` and at most ``longest`` steps.  After a change, 5% of the old value are
    left after 24 steps with 32 or more requests in the batch, and after 192 with 4 or fewer, at these defaults.
    """

    def __init__(self, prior: float, requests: int = 256, shortest: int = 8, longest: int = 64) -> None:
        self.value = prior
        """Tokens per request and verify step; the prior before the first."""
        self._requests = requests
        self._shortest = shortest
        self._longest = longest
        self._evidence = 4.0

    def add(self, tokens: int, requests: int) -> None:
        """Take in a verify step that put out ``tokens`` for ``requests`` requests."""
        if requests < 1:
            return
        reach = min(max(self._requests / requests, self._shortest), self._longest)
        self.value += (tokens / requests - self.value) / min(reach, self._evidence + 1.0)
        self._evidence = min(self._evidence + 1.0, self._longest)

    def doubt(self, trust: float) -> None:
        """Let what comes next replace the present value the sooner the lower ``trust`` (0 to 1)."""
        self._evidence *= trust
