"""The configured mode, or the one that an operator has pinned since."""

from __future__ import annotations

from specswitch.config import OperatingMode
from specswitch.policy.base import CATCH_UP_ALL, Policy, Wish, boundaries_of
from specswitch.signals import LoadSample, Mode


class Steering:
    """How the server operates; what an operator says while it runs outranks the configuration."""

    def __init__(self, configured: OperatingMode) -> None:
        self.mode = configured
        self._configured = configured

    def pin(self, mode: OperatingMode | None) -> None:
        """Operate in ``mode``; None: as configured."""
        self.mode = mode or self._configured


class Steered:
    """``plain`` and ``speculative`` by ``pins``, anything else by ``auto``.

    ``auto`` sees every sample, so that it has learnt meanwhile what there was to learn.
    """

    def __init__(self, steering: Steering, pins: dict[OperatingMode, Policy], auto: Policy) -> None:
        self.auto = auto
        """May be replaced between two turns."""
        self._steering = steering
        self._pins = pins

    @property
    def boundaries(self) -> frozenset[int] | None:
        auto, pin = boundaries_of(self.auto), self._pins.get(self._steering.mode)
        if auto is None or pin is None:
            return auto
        pinned = boundaries_of(pin)
        return None if pinned is None else auto | pinned

    def __call__(self, sample: LoadSample) -> Wish | None:
        wish = self.auto(sample)
        pin = self._pins.get(self._steering.mode)
        if pin is None:
            return wish
        pinned = pin(sample)
        speculates = pinned is not None and pinned.mode is Mode.SPECULATIVE
        return CATCH_UP_ALL if speculates and sample.look is not None else pinned
