"""When the mode should change: pure functions of load samples that compose."""

from __future__ import annotations

from specswitch.config import SwitchConfig
from specswitch.policy.base import Policy, Wish
from specswitch.policy.dwell import Dwell
from specswitch.policy.features import PlainFor
from specswitch.policy.pinned import Pinned
from specswitch.policy.watermark import Watermark
from specswitch.signals import Mode

__all__ = ["Dwell", "Pinned", "PlainFor", "Policy", "Watermark", "Wish", "policy_for"]


def policy_for(config: SwitchConfig) -> Policy:
    """The policy that a configuration asks for; ``observe`` decides exactly as ``auto`` does.

    ``plain_for`` outranks a pinned ``speculative``: what follows such a request is the pin again, after a dwell.
    """
    if config.mode == "plain":
        return Pinned(Mode.PLAIN, "pinned to plain")
    steady: Policy = (
        Pinned(Mode.SPECULATIVE, "pinned to speculative")
        if config.mode == "speculative"
        else Watermark(config.high_watermark, config.low_watermark)
    )
    held = Dwell(steady, config.dwell_steps)
    return PlainFor(config.plain_for, held) if config.plain_for else held
