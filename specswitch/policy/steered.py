"""The configured mode, or the one that an operator has pinned since."""

from __future__ import annotations

from dataclasses import dataclass

from specswitch.config import OperatingMode
from specswitch.policy.base import Policy, Wish
from specswitch.signals import LoadSample


@dataclass(slots=True)
class Steering:
    """How the server operates; what an operator says while it runs outranks the configuration."""

    configured: OperatingMode
    pinned: OperatingMode | None = None
    """None: as configured."""

    @property
    def mode(self) -> OperatingMode:
        return self.pinned or self.configured


class Steered:
    """``plain`` and ``speculative`` by ``pins``, anything else by ``auto``.

    ``auto`` sees every sample, so that it has learnt meanwhile what there was to learn.
    """

    def __init__(self, steering: Steering, pins: dict[OperatingMode, Policy], auto: Policy) -> None:
        self.auto = auto
        """May be replaced between two turns."""
        self._steering = steering
        self._pins = pins

    def __call__(self, sample: LoadSample) -> Wish | None:
        wish = self.auto(sample)
        pin = self._pins.get(self._steering.mode)
        return wish if pin is None else pin(sample)
