"""When the mode should change: functions of load samples that compose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from specswitch import profile as profiles
from specswitch.config import SwitchConfig
from specswitch.policy.base import Policy, Wish
from specswitch.policy.dwell import Dwell
from specswitch.policy.features import PlainFor
from specswitch.policy.goodput import Goodput, GoodputSettings
from specswitch.policy.pinned import Pinned
from specswitch.policy.watermark import Watermark
from specswitch.profile import Profile
from specswitch.signals import Mode

__all__ = ["Dwell", "Goodput", "GoodputSettings", "Pinned", "PlainFor", "Policy", "Watermark", "Wish", "policy_for"]


def policy_for(config: SwitchConfig, profile: Profile | None = None) -> Policy:
    """The policy that a configuration asks for; ``observe`` decides exactly as ``auto`` does.

    ``plain_for`` outranks a pinned ``speculative``: what follows such a request is the pin again, after a dwell.
    ``profile`` takes the place of the file that the configuration names.

    Raises:
        ProfileError: the goodput policy is asked for and its profile cannot be used.
    """
    if config.mode == "plain":
        return Pinned(Mode.PLAIN, "pinned to plain")
    held = Dwell(_steady(config, profile), config.dwell_steps)
    return PlainFor(config.plain_for, held) if config.plain_for else held


def _steady(config: SwitchConfig, profile: Profile | None) -> Policy:
    if config.mode == "speculative":
        return Pinned(Mode.SPECULATIVE, "pinned to speculative")
    if config.policy == "goodput":
        return _goodput(config, profile or profiles.load(Path(config.profile)))
    return Watermark(config.high_watermark, config.low_watermark)


def _goodput(config: SwitchConfig, profile: Profile) -> Goodput:
    switching = profile.switching.cost()
    if config.draft_kv == "cold":
        switching = replace(switching, catch_up_per_token=0.0)
    return Goodput(
        profile.plain.step_time(),
        profile.speculative.step_time(),
        switching,
        profile.accept_length,
        profile.longest_accept_length,
        GoodputSettings(config.hysteresis, config.probe_share, config.dwell_steps),
    )
