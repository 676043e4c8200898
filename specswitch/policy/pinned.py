"""One mode for good, whatever the load."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from specswitch.policy.base import Wish
from specswitch.signals import LoadSample, Mode


@dataclass(frozen=True, slots=True)
class Pinned:
    """Always wishes for ``mode``."""

    boundaries: ClassVar[frozenset[int]] = frozenset()
    mode: Mode
    reason: str
    _wish: Wish = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_wish", Wish(self.mode, self.reason))

    def __call__(self, sample: LoadSample) -> Wish:
        return self._wish
