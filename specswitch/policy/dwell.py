"""A least stay in each mode, so that a load at a watermark cannot make the mode flap."""

from __future__ import annotations

from dataclasses import dataclass

from specswitch.policy.base import Policy, Wish, boundaries_of
from specswitch.signals import LoadSample, Mode

_DRAINING = Mode.DRAINING  # looking it up in the enumeration costs more than the rest of a turn's wish


@dataclass(frozen=True, slots=True)
class Dwell:
    """Holds back ``inner``'s wish to leave SPECULATIVE or PLAIN before ``steps`` decode steps in it.

    But for one that is to be followed at once.

    DRAINING decodes nothing and is never prolonged: both ways out of it are open at once.  Since a
    cancelled drain enters SPECULATIVE anew, a drain begins at most once per dwell as well.
    """

    inner: Policy
    steps: int

    @property
    def boundaries(self) -> frozenset[int] | None:
        inner = boundaries_of(self.inner)
        return None if inner is None else inner | {self.steps}

    def __call__(self, sample: LoadSample) -> Wish | None:
        wish = self.inner(sample)
        if wish is None or sample.mode is _DRAINING or wish.mode is sample.mode:
            return wish
        return wish if wish.at_once or sample.steps_in_mode >= self.steps else None
