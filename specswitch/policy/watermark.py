"""Two watermarks on the decode batch size, apart so that a load between them changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from specswitch.policy.base import Wish
from specswitch.signals import LoadSample, Mode


@dataclass(frozen=True, slots=True)
class Watermark:
    """PLAIN at or above ``high`` requests in the decode batch, SPECULATIVE at or below ``low``.

    In between a settled mode stays and a drain goes on to PLAIN.

    An empty decode batch is no reason to return: a dwell in SPECULATIVE would begin with it, and hold whatever burst
    comes next.  The first requests decide.
    """

    boundaries: ClassVar[frozenset[int]] = frozenset()
    high: int
    low: int

    def __call__(self, sample: LoadSample) -> Wish | None:
        size = sample.decode_batch_size
        if size >= self.high:
            return _at_or_above(self.high, size)
        if size <= self.low:
            if not size and sample.mode is Mode.PLAIN:
                return None
            return _at_or_below(self.low, size)
        if sample.mode is Mode.DRAINING:
            return Wish(Mode.PLAIN, f"decode batch {size} > low watermark {self.low}")
        return None


# a load that stays makes the same wish in every turn


@lru_cache
def _at_or_above(high: int, size: int) -> Wish:
    return Wish(Mode.PLAIN, f"decode batch {size} >= high watermark {high}")


@lru_cache
def _at_or_below(low: int, size: int) -> Wish:
    return Wish(Mode.SPECULATIVE, f"decode batch {size} <= low watermark {low}")
