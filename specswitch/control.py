"""What an operator may ask of a running server, through SGLang's ``POST /set_internal_state``.

SGLang carries numbers alone there (``managers/io_struct.py`` ``SetInternalStateReq.server_args``, 0.5.17 and later),
so that every choice has a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from specswitch.config import OperatingMode
from specswitch.errors import ControlError

MODE_KEY = "specswitch_mode"
"""Operate in another mode than the configured one."""
PROFILE_KEY = "specswitch_profile"
"""1: read the server's profile from its file again, and go by it."""

PinName = Literal["configured", "auto", "plain", "speculative", "observe"]
NUMBERS: dict[PinName, int] = {"configured": 0, "auto": 1, "plain": 2, "speculative": 3, "observe": 4}
"""The values of :data:`MODE_KEY`; ``configured`` takes a pin off."""


class Command(NamedTuple):
    """What was asked for."""

    key: Literal["specswitch_mode", "specswitch_profile"]
    pin: OperatingMode | None = None
    """With :data:`MODE_KEY`: None for what is configured."""


def parse(values: Mapping[str, Any]) -> Command | None:
    """The command in what ``/set_internal_state`` was given, or None where nothing is specswitch's.

    Raises:
        ControlError: one sentence; nothing of the request may be carried out.
    """
    ours = [key for key in values if key.startswith("specswitch")]
    if not ours:
        return None
    for key in ours:
        if key not in (MODE_KEY, PROFILE_KEY):
            raise ControlError(f"{key} is nothing that specswitch can set: use {MODE_KEY} or {PROFILE_KEY}.")
    if len(values) > 1:
        raise ControlError(f"{ours[0]} was sent together with other keys: send it alone.")
    value = values[ours[0]]
    if ours[0] == PROFILE_KEY:
        if isinstance(value, bool) or value != 1:
            raise ControlError(f"{PROFILE_KEY} is {value!r}, which means nothing: send 1 to have the profile read.")
        return Command("specswitch_profile")
    for name, number in NUMBERS.items():
        if not isinstance(value, bool) and value == number:
            return Command("specswitch_mode", None if name == "configured" else name)
    allowed = ", ".join(f"{number} ({name})" for name, number in NUMBERS.items())
    raise ControlError(f"{MODE_KEY} is {value!r}, which is none of {allowed}: send one of these numbers.")
