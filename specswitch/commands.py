"""Carries out, in one scheduler, what an operator has sent; every rank hears the same before the same turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from specswitch import control
from specswitch.errors import SpecswitchError
from specswitch.observe.log import EventLog, describe
from specswitch.switch import Switch


class Commands:
    """Answers yes or no; what went wrong is logged and changes nothing."""

    def __init__(self, switch: Switch, log: EventLog, use_profile: Callable[[], None]) -> None:
        """``use_profile`` reads the profile again, and raises :class:`SpecswitchError` where it cannot be used."""
        self._use_profile = use_profile
        self._switch = switch
        self._log = log

    def handle(self, values: Mapping[str, Any]) -> bool | None:
        """Whether the command in ``values`` was carried out; None where there is none."""
        try:
            command = control.parse(values)
            if command is None:
                return None
            if self._switch.faulted:
                self._log.warning(f"{command.key} was not followed, because a fault has ended the switching.")
                return False
            if command.key == control.PROFILE_KEY:
                self._use_profile()
            else:
                self._switch.pin(command.pin)
        except SpecswitchError as error:
            self._log.warning(str(error))
            return False
        except Exception as error:  # must not reach the scheduler
            self._log.warning(f"What an operator sent was not followed ({describe(error)}).")
            return False
        return True
