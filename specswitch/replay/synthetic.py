"""Loads and servers made up to put a policy to the test."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from random import Random

import msgspec

from specswitch.costs import break_even_batch_size
from specswitch.profile import Curve, Profile
from specswitch.replay.load import ClosedLoop, Load, Over, between, steps


def ramp(profile: Profile, seconds: float = 240.0) -> Load:
    """1 -> 256 -> 1 requests in flight, while the accept length goes from 3.5 to 1.5 to 2.5."""
    return ClosedLoop(
        "ramp",
        concurrency=between((0, 1), (seconds / 2, 256), (seconds, 1)),
        accept_length=steps(3.5, (seconds / 3, 1.5), (2 * seconds / 3, 2.5)),
        duration=seconds,
    )


def jitter(profile: Profile, seconds: float = 120.0) -> Load:
    """Batches 10% above and below the break-even, changing sides every second, with short answers.

    Where speculation wins or loses at every batch size, around 64.
    """
    around = break_even_batch_size(
        profile.plain.step_time(), profile.speculative.step_time(), profile.accept_length, 152, 256
    )
    around = around if 8 <= around < 230 else 64
    return ClosedLoop(
        f"jitter around {around}",
        concurrency=lambda now: around * (1.1 if int(now) % 2 else 0.9),
        accept_length=lambda now: profile.accept_length,
        duration=seconds,
        output_tokens=48,
    )


def low(profile: Profile, seconds: float = 120.0) -> Load:
    """64 requests in flight whose text the draft hardly ever guesses."""
    return ClosedLoop("low", lambda now: 64, lambda now: 1.2, seconds)


def high(profile: Profile, seconds: float = 120.0) -> Load:
    """64 requests in flight whose text the draft guesses well."""
    return ClosedLoop("high", lambda now: 64, lambda now: 0.9 * profile.longest_accept_length, seconds)


def turns(profile: Profile, seconds: float = 240.0) -> Load:
    """64 requests in flight of two kinds of traffic that take turns, 40 seconds each."""
    return ClosedLoop("turns", lambda now: 64, lambda now: 1.3 if int(now / 40) % 2 else 3.3, seconds)


def random_turns(seed: int, seconds: float = 240.0) -> Load:
    """As :func:`turns`, but for durations drawn at random, of 40 seconds on average (exponentially distributed)."""
    random, ends = Random(seed), [0.0]
    while ends[-1] < seconds:
        ends.append(ends[-1] + random.expovariate(1.0 / 40.0))
    return ClosedLoop(
        f"turns at random {seed}", lambda now: 64, lambda now: 3.3 if bisect_right(ends, now) % 2 else 1.3, seconds
    )


def context(profile: Profile, seconds: float = 120.0) -> Load:
    """32 requests in flight, with prompts of 128 tokens in the first half and 10,000 in the second."""
    prompts: Over = steps(128, (seconds / 2, 10_000))
    return ClosedLoop("context", lambda now: 32, lambda now: 2.5, seconds, prompt_tokens=prompts)


LOADS: dict[str, Callable[[Profile], Load]] = {
    load.__name__: load for load in (ramp, jitter, low, high, turns, context)
}


def never_wins(profile: Profile) -> Profile:
    """The same server where a verify step takes longer than the longest accept length can make good."""
    return _slowed(profile, 1.1 * profile.longest_accept_length, "speculation never wins")


def always_wins(profile: Profile) -> Profile:
    """The same server where a verify step costs a fifth more than a plain one, at any batch size."""
    return _slowed(profile, 1.2, "speculation always wins")


def wins_at_long_context(profile: Profile) -> Profile:
    """The same server where speculation loses at short contexts, at an accept length of 2.5, and wins at long ones."""
    plain = profile.plain
    points = [msgspec.structs.replace(point, seconds=point.seconds * 2.8) for point in plain.points]
    curve = Curve(points, plain.seconds_per_context_token * 1.1)
    return _with(profile, curve, "speculation wins at long contexts only")


VARIANTS: dict[str, Callable[[Profile], Profile]] = {
    made.__name__.replace("_", "-"): made for made in (never_wins, always_wins, wins_at_long_context)
}


def _slowed(profile: Profile, factor: float, name: str) -> Profile:
    plain = profile.plain
    points = [msgspec.structs.replace(point, seconds=point.seconds * factor) for point in plain.points]
    return _with(profile, Curve(points, plain.seconds_per_context_token * factor), name)


def _with(profile: Profile, speculative: Curve, name: str) -> Profile:
    return msgspec.structs.replace(profile, speculative=speculative, source=f"Made up from another profile: {name}.")
