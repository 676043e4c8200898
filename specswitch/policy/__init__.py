"""When the mode should change: functions of load samples that compose."""

from __future__ import annotations

from dataclasses import replace

from specswitch.config import OperatingMode, SwitchConfig
from specswitch.policy.base import Policy, Wish, boundaries_of
from specswitch.policy.dwell import Dwell
from specswitch.policy.features import PlainFor
from specswitch.policy.goodput import Goodput
from specswitch.policy.pinned import Pinned
from specswitch.policy.settings import GoodputSettings
from specswitch.policy.steered import Steered, Steering
from specswitch.policy.watermark import Watermark
from specswitch.profile import Profile
from specswitch.signals import Mode

__all__ = [
    "Dwell",
    "Goodput",
    "GoodputSettings",
    "Pinned",
    "PlainFor",
    "Policy",
    "Steered",
    "Steering",
    "Watermark",
    "Wish",
    "around",
    "automatic",
    "boundaries_of",
    "policy_for",
    "steered",
]


def policy_for(config: SwitchConfig, profile: Profile | None = None) -> Policy:
    """The policy that a configuration asks for; ``observe`` decides exactly as ``auto`` does.

    ``profile`` is what goodput goes by.
    """
    return around(config, steered(config, Steering(config.mode), profile))


def steered(config: SwitchConfig, steering: Steering, profile: Profile | None = None) -> Steered:
    """As :func:`policy_for`, but following ``steering``, and without ``plain_for``."""
    speculative: Policy = Pinned(Mode.SPECULATIVE, "pinned to speculative")
    if config.plain_for:  # which takes the mode away from the pin and gives it back
        speculative = Dwell(speculative, config.dwell_steps)
    pins: dict[OperatingMode, Policy] = {"plain": Pinned(Mode.PLAIN, "pinned to plain"), "speculative": speculative}
    return Steered(steering, pins, automatic(config, profile))


def around(config: SwitchConfig, policy: Policy) -> Policy:
    """What outranks ``policy``, a pinned ``speculative`` included: requests that are to be decoded plain."""
    return PlainFor(config.plain_for, policy) if config.plain_for else policy


def automatic(config: SwitchConfig, profile: Profile | None = None) -> Policy:
    """What ``auto`` goes by: the watermarks, too, where goodput has no profile yet."""
    steady: Policy = Watermark(config.high_watermark, config.low_watermark)
    if config.policy == "goodput" and profile is not None:
        steady = _goodput(config, profile)
    return Dwell(steady, config.dwell_steps)


def _goodput(config: SwitchConfig, profile: Profile) -> Goodput:
    switching = profile.switching.cost()
    settings = GoodputSettings(config.hysteresis, config.probe_share, config.dwell_steps)
    if config.draft_kv == "cold":
        # those that return cold do not show what text is like: a probe waits for others to come
        settings = replace(settings, least_look_steps=config.dwell_steps, sample_sizes=())
        switching = replace(switching, catch_up_per_token=0.0)
    return Goodput(
        profile.plain.step_time(),
        profile.speculative.step_time(),
        switching,
        profile.accept_length,
        profile.longest_accept_length,
        settings,
    )
