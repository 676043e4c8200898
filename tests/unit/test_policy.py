from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from specswitch.config import SwitchConfig
from specswitch.machine import SwitchMachine
from specswitch.policy import (
    Dwell,
    Pinned,
    PlainFor,
    Policy,
    Steering,
    Watermark,
    Wish,
    boundaries_of,
    policy_for,
    steered,
)
from specswitch.signals import SAMPLING_FEATURES, KnownTokens, LoadSample, LocalReadings, Mode, StepReading

SPECULATIVE, DRAINING, PLAIN = Mode.SPECULATIVE, Mode.DRAINING, Mode.PLAIN


def sample(mode: Mode = SPECULATIVE, size: int = 0, steps: int = 1000, **fields: Any) -> LoadSample:
    return LoadSample(
        mode=mode,
        decode_batch_size=size,
        queue_length=fields.pop("queue_length", 0),
        decode_step=fields.pop("decode_step", 1000),
        steps_in_mode=steps,
        accept_length=fields.pop("accept_length", None),
        **fields,
    )


def wished(policy: Policy, seen: LoadSample) -> Mode | None:
    wish = policy(seen)
    return wish.mode if wish else None


@pytest.mark.parametrize(
    ("mode", "size", "expected"),
    [
        (SPECULATIVE, 0, SPECULATIVE),
        (SPECULATIVE, 4, SPECULATIVE),
        (SPECULATIVE, 5, None),
        (SPECULATIVE, 7, None),
        (SPECULATIVE, 8, PLAIN),
        (SPECULATIVE, 9, PLAIN),
        (DRAINING, 9, PLAIN),
        (DRAINING, 5, PLAIN),
        (DRAINING, 4, SPECULATIVE),
        (PLAIN, 9, PLAIN),
        (PLAIN, 8, PLAIN),
        (PLAIN, 7, None),
        (PLAIN, 5, None),
        (PLAIN, 4, SPECULATIVE),
        (PLAIN, 1, SPECULATIVE),
        (PLAIN, 0, None),
    ],
)
def test_watermark(mode: Mode, size: int, expected: Mode | None) -> None:
    assert wished(Watermark(high=8, low=4), sample(mode, size)) is expected


def test_watermark_reasons_carry_the_numbers() -> None:
    policy = Watermark(high=32, low=24)
    assert policy(sample(SPECULATIVE, 34)) == Wish(PLAIN, "decode batch 34 >= high watermark 32")
    assert policy(sample(PLAIN, 23)) == Wish(SPECULATIVE, "decode batch 23 <= low watermark 24")
    assert policy(sample(DRAINING, 23)) == Wish(SPECULATIVE, "decode batch 23 <= low watermark 24")
    assert policy(sample(DRAINING, 30)) == Wish(PLAIN, "decode batch 30 > low watermark 24")


@pytest.mark.parametrize("steps", [0, 1, 31, 32, 33])
@pytest.mark.parametrize(("mode", "size", "expected"), [(SPECULATIVE, 9, PLAIN), (PLAIN, 3, SPECULATIVE)])
def test_dwell_holds_a_settled_mode_for_its_steps(mode: Mode, size: int, expected: Mode, steps: int) -> None:
    policy = Dwell(Watermark(high=8, low=4), steps=32)
    assert wished(policy, sample(mode, size, steps)) is (expected if steps >= 32 else None)


@pytest.mark.parametrize(("size", "expected"), [(3, SPECULATIVE), (9, PLAIN)])
def test_dwell_never_delays_a_drain(size: int, expected: Mode) -> None:
    assert wished(Dwell(Watermark(high=8, low=4), steps=32), sample(DRAINING, size, steps=0)) is expected


def test_dwell_lets_a_wish_to_stay_through() -> None:
    stay = Wish(PLAIN, "stay")
    assert Dwell(lambda seen: stay, steps=32)(sample(PLAIN, steps=0)) == stay


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("pin", [SPECULATIVE, PLAIN])
def test_pinned_ignores_the_load(pin: Mode, mode: Mode) -> None:
    policy = Pinned(pin, "pinned")
    assert policy(sample(mode, 0)) == policy(sample(mode, 1000)) == Wish(pin, "pinned")


@pytest.mark.parametrize("mode", Mode)
def test_plain_for_wants_plain_at_once_and_for_as_long(mode: Mode) -> None:
    policy = PlainFor(frozenset({"min_p", "penalties"}), Dwell(Watermark(high=8, low=4), steps=32))
    seen = sample(mode, size=1, steps=0, sampling_features=frozenset({"penalties", "min_p", "logprobs"}))
    assert policy(seen) == Wish(PLAIN, "running requests use min_p, penalties")


def test_plain_for_hands_other_batches_to_the_inner_policy() -> None:
    inner = Dwell(Watermark(high=8, low=4), steps=32)
    policy = PlainFor(frozenset({"min_p"}), inner)
    other = frozenset({"grammar"})
    for mode in Mode:
        for size in (1, 9):
            for steps in (0, 32):
                seen = sample(mode, size, steps, sampling_features=other)
                assert policy(seen) == inner(seen)


POLICIES = [
    policy_for(SwitchConfig()),
    policy_for(SwitchConfig(mode="observe")),
    policy_for(SwitchConfig(mode="plain")),
    policy_for(SwitchConfig(mode="speculative")),
    policy_for(SwitchConfig(plain_for=frozenset({"min_p"}))),
]

samples = st.builds(
    LoadSample,
    mode=st.sampled_from(Mode),
    decode_batch_size=st.integers(0, 64),
    queue_length=st.integers(0, 64),
    decode_step=st.integers(0, 100),
    steps_in_mode=st.integers(0, 100),
    accept_length=st.none() | st.floats(1, 8),
    sampling_features=st.frozensets(st.sampled_from(sorted(SAMPLING_FEATURES))),
    batch=st.builds(KnownTokens, st.integers(0, 10000), st.integers(0, 10000)),
    local=st.just(LocalReadings()),
)


@pytest.mark.parametrize("policy", POLICIES)
@given(seen=samples, seconds=st.floats(0, 1))
def test_no_policy_steers_by_local_readings(policy: Policy, seen: LoadSample, seconds: float) -> None:
    step = StepReading(SPECULATIVE, 4, 100, 8, seconds)
    assert policy(seen) == policy(seen._replace(local=LocalReadings((step,))))


class Uncounted:
    """Tokens of a batch that nobody is to count."""

    @property
    def context_tokens(self) -> int:
        raise AssertionError("the requests were walked")

    missed_tokens = context_tokens


@pytest.mark.parametrize("policy", POLICIES)
@given(seen=samples)
def test_no_policy_but_goodput_has_the_requests_walked(policy: Policy, seen: LoadSample) -> None:
    assert policy(seen._replace(batch=Uncounted())) == policy(seen)


@pytest.mark.parametrize("policy", POLICIES)
@given(seen=samples, later=samples)
def test_an_answer_holds_for_the_same_batch_up_to_the_next_boundary(
    policy: Policy, seen: LoadSample, later: LoadSample
) -> None:
    boundaries = boundaries_of(policy)
    assert boundaries is not None
    later = later._replace(
        mode=seen.mode,
        decode_batch_size=seen.decode_batch_size,
        sampling_features=seen.sampling_features,
        look=seen.look,
    )
    assume(not any(seen.steps_in_mode < steps <= later.steps_in_mode for steps in boundaries))
    assume(seen.steps_in_mode <= later.steps_in_mode)
    assert policy(later) == policy(seen)


def test_a_policy_that_learns_is_asked_in_every_turn() -> None:
    config, steering = SwitchConfig(dwell_steps=8), Steering("auto")
    policy = steered(config, steering)
    assert boundaries_of(PlainFor(frozenset({"min_p"}), policy)) == {8}
    policy.auto = Dwell(lambda sample: None, 8)
    assert boundaries_of(PlainFor(frozenset({"min_p"}), policy)) is None
    steering.pin("plain")
    assert boundaries_of(policy) is None, "it goes on learning while another mode is pinned"


@pytest.mark.parametrize("policy", POLICIES)
@given(seen=samples)
def test_no_policy_wishes_for_a_drain(policy: Policy, seen: LoadSample) -> None:
    assert wished(policy, seen) in (None, SPECULATIVE, PLAIN)


@pytest.mark.parametrize(
    ("config", "seen", "expected"),
    [
        (SwitchConfig(), sample(SPECULATIVE, 32, steps=32), PLAIN),
        (SwitchConfig(), sample(SPECULATIVE, 32, steps=31), None),
        (SwitchConfig(), sample(SPECULATIVE, 31), None),
        (SwitchConfig(), sample(PLAIN, 24, steps=32), SPECULATIVE),
        (SwitchConfig(), sample(PLAIN, 25), None),
        (SwitchConfig(mode="observe"), sample(SPECULATIVE, 32, steps=32), PLAIN),
        (SwitchConfig(mode="plain"), sample(SPECULATIVE, 0, steps=0), PLAIN),
        (SwitchConfig(mode="plain"), sample(PLAIN, 0), PLAIN),
        (SwitchConfig(mode="speculative"), sample(SPECULATIVE, 999), SPECULATIVE),
        (SwitchConfig(mode="speculative"), sample(PLAIN, 999, steps=32), SPECULATIVE),
        (
            SwitchConfig(mode="speculative", plain_for=frozenset({"min_p"})),
            sample(SPECULATIVE, 1, steps=0, sampling_features=frozenset({"min_p"})),
            PLAIN,
        ),
        (SwitchConfig(mode="speculative", plain_for=frozenset({"min_p"})), sample(PLAIN, 1, steps=31), None),
    ],
)
def test_policy_for(config: SwitchConfig, seen: LoadSample, expected: Mode | None) -> None:
    assert wished(policy_for(config), seen) is expected


class Driven:
    """A machine under a policy, one scheduler turn at a time, as the Switch drives it."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.machine = SwitchMachine([self._restart_count])
        self.step = 0
        self.entered_at = 0
        self.switches: list[tuple[int, Mode, Mode]] = []

    def _restart_count(self, transition: object, old: Mode, new: Mode, reason: str) -> None:
        self.switches.append((self.step, old, new))
        if new is not DRAINING:
            self.entered_at = self.step

    def turn(self, size: int, drained: bool, can_return: bool) -> None:
        mode = self.machine.mode
        wish = self.policy(sample(mode, size, steps=self.step - self.entered_at, decode_step=self.step))
        if wish is not None:
            if mode is SPECULATIVE and wish.mode is PLAIN:
                self.machine.begin_drain(wish.reason)
            elif mode is DRAINING and wish.mode is SPECULATIVE:
                self.machine.cancel_drain(wish.reason)
            elif mode is PLAIN and wish.mode is SPECULATIVE and can_return:
                self.machine.return_to_speculative(wish.reason)
        if self.machine.mode is DRAINING and drained:
            self.machine.enter_plain("drained")
        if size and self.machine.mode is not DRAINING:
            self.step += 1


turns = st.lists(st.tuples(st.sampled_from([0, 1, 2, 3, 4, 5]), st.booleans(), st.booleans()), max_size=400)


@given(turns=turns, dwell=st.integers(1, 12))
def test_at_most_one_switch_per_dwell_under_any_load(turns: list[tuple[int, bool, bool]], dwell: int) -> None:
    driven = Driven(Dwell(Watermark(high=3, low=2), dwell))
    for size, drained, can_return in turns:
        driven.turn(size, drained, can_return)
    left = [step for step, old, _ in driven.switches if old is not DRAINING]
    assert all(later - earlier >= dwell for earlier, later in pairwise(left))
    assert not left or left[0] >= dwell


def test_a_load_that_hovers_at_the_watermark_switches_once_per_dwell() -> None:
    """The bound above is met by switching, not by standing still."""
    driven = Driven(Dwell(Watermark(high=3, low=2), 8))
    for turn in range(400):
        driven.turn(size=(2, 3, 4)[turn % 3], drained=True, can_return=True)
    left = [step for step, old, _ in driven.switches if old is not DRAINING]
    gaps = {later - earlier for earlier, later in pairwise(left)}
    assert len(left) > 30
    assert min(gaps) >= 8
    assert max(gaps) <= 8 + 2


def test_without_the_dwell_the_same_load_flaps() -> None:
    driven = Driven(Watermark(high=3, low=2))
    for turn in range(60):
        driven.turn(size=(2, 3, 4)[turn % 3], drained=True, can_return=True)
    left = [step for step, old, _ in driven.switches if old is not DRAINING]
    assert min(later - earlier for earlier, later in pairwise(left)) < 8
