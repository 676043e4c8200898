"""Two watermarks on the decode batch size, apart so that a load between them changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from specswitch.policy.base import Wish
from specswitch.signals import LoadSample, Mode


@dataclass(frozen=True, slots=True)
class Watermark:
    """PLAIN at or above ``high`` requests in the decode batch, SPECULATIVE again at or below ``low``.

    A drain goes on to PLAIN unless the batch has fallen to ``low`` meanwhile.
    """

    high: int
    low: int

    def __call__(self, sample: LoadSample) -> Wish | None:
        size = sample.decode_batch_size
        if sample.mode is Mode.SPECULATIVE:
            return Wish(Mode.PLAIN, f"decode batch {size} >= high watermark {self.high}") if size >= self.high else None
        if size <= self.low:
            return Wish(Mode.SPECULATIVE, f"decode batch {size} <= low watermark {self.low}")
        if sample.mode is Mode.DRAINING:
            return Wish(Mode.PLAIN, f"decode batch {size} > low watermark {self.low}")
        return None
