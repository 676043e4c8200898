"""What decode steps took, as the scheduler's own thread sees it: from one result to the next."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from specswitch.signals import Mode, StepReading


class StepReadings:
    """Collects a :class:`StepReading` per processed decode result until the next sample takes them."""

    _MOST = 64
    """Readings kept at most, should nobody take them."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._readings: deque[StepReading] = deque(maxlen=self._MOST)
        self._last_mode: Mode | None = None
        self._last_time = 0.0

    def decoded(
        self,
        mode: Mode,
        batch_size: int,
        context_tokens: int,
        tokens: int,
        uncounted: int = 0,
        uncounted_tokens: int = 0,
    ) -> None:
        """A decode result was processed.  Its time is known if nothing but one of the same mode came before.

        The arguments are those of :class:`StepReading`.
        """
        now = self._clock()
        seconds = now - self._last_time if mode is self._last_mode else None
        reading = StepReading(mode, batch_size, context_tokens, tokens, seconds, uncounted, uncounted_tokens)
        self._readings.append(reading)
        self._last_mode, self._last_time = mode, now

    def interrupted(self) -> None:
        """A prefill, its launch, a forward beside the batch, a switch or an idle turn comes before the next result."""
        self._last_mode = None

    def take(self) -> tuple[StepReading, ...]:
        """The readings since the last call, oldest first."""
        readings = tuple(self._readings)
        self._readings.clear()
        return readings
