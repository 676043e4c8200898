"""The Switch against a mocked engine: what it asks for, when, and that no fault of it reaches the scheduler."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest
from pytest_mock import MockerFixture

from specswitch.config import OperatingMode, SwitchConfig
from specswitch.engine.base import Engine, PlainEntry, SpeculativeEntry
from specswitch.machine import Transition
from specswitch.policy import Steering, Wish, around, steered
from specswitch.records import StepCounts
from specswitch.signals import LoadSample, Mode, SampleLook
from specswitch.switch import Switch

TO_PLAIN, TO_SPECULATIVE = Wish(Mode.PLAIN, "busy"), Wish(Mode.SPECULATIVE, "idle")


class Bench:
    """A Switch on a mocked engine, its wish settable."""

    def __init__(self, mocker: MockerFixture, **settings: Any) -> None:
        self.wish: Wish | None = None
        self.engine: MagicMock = mocker.create_autospec(Engine, instance=True)
        self.engine.sample.side_effect = lambda mode, step, in_mode: LoadSample(mode, 3, 1, step, in_mode, 2.5)
        self.engine.batch_version.return_value = 1
        self.engine.drained.return_value = True
        self.engine.enter_plain.return_value = PlainEntry(requests=3, slots_given_back=12)
        self.engine.cancel_return.return_value = True
        self.observer: MagicMock = mocker.MagicMock()
        self.switch = Switch(self.engine, lambda sample: self.wish, SwitchConfig(**settings), self.observer)

    def turn(self, wish: Wish | None) -> Mode:
        self.wish = wish
        self.switch.on_turn()
        return self.switch.machine.mode

    @property
    def taken(self) -> list[Transition]:
        return [call.args[0].transition for call in self.observer.transition.call_args_list]


@pytest.fixture
def bench(mocker: MockerFixture) -> Bench:
    return Bench(mocker)


def test_a_drained_engine_enters_plain_in_the_same_turn(bench: Bench) -> None:
    assert bench.turn(TO_PLAIN) is Mode.PLAIN

    assert bench.taken == [Transition.BEGIN_DRAIN, Transition.ENTER_PLAIN]
    record = bench.observer.transition.call_args.args[0]
    assert (record.slots_given_back, record.batch_size, record.queue_length, record.reason) == (12, 3, 1, "busy")


def test_a_drain_goes_on_until_nothing_is_in_flight(bench: Bench) -> None:
    bench.engine.drained.return_value = False

    assert bench.turn(TO_PLAIN) is Mode.DRAINING
    assert bench.turn(None) is Mode.DRAINING
    bench.engine.enter_plain.assert_not_called()

    bench.engine.drained.return_value = True
    assert bench.turn(None) is Mode.PLAIN


def test_a_drain_is_given_up_when_the_load_falls(bench: Bench) -> None:
    bench.engine.drained.return_value = False
    bench.turn(TO_PLAIN)

    assert bench.turn(TO_SPECULATIVE) is Mode.SPECULATIVE
    bench.engine.cancel_drain.assert_called_once_with()
    bench.engine.enter_plain.assert_not_called()


def test_a_return_is_complete_when_the_engine_says_so(bench: Bench) -> None:
    bench.turn(TO_PLAIN)

    assert bench.turn(TO_SPECULATIVE) is Mode.PLAIN
    bench.turn(TO_SPECULATIVE)
    bench.engine.request_return.assert_called_once_with("catch-up", None)

    bench.switch.on_returned(SpeculativeEntry(requests=3, tokens_caught_up=40))
    assert bench.switch.machine.mode is Mode.SPECULATIVE
    assert bench.observer.transition.call_args.args[0].tokens_caught_up == 40


def test_a_return_is_given_up_when_the_load_rises_again(bench: Bench) -> None:
    bench.turn(TO_PLAIN)
    bench.turn(TO_SPECULATIVE)

    bench.turn(TO_PLAIN)
    bench.engine.cancel_return.assert_called_once_with()
    bench.turn(TO_SPECULATIVE)
    assert bench.engine.request_return.call_count == 2


def test_a_return_of_a_sample_gives_way_to_one_of_all(bench: Bench) -> None:
    bench.turn(TO_PLAIN)
    bench.turn(TO_SPECULATIVE._replace(sampled=8))
    bench.turn(TO_SPECULATIVE._replace(sampled=8))
    bench.engine.request_return.assert_called_once_with("catch-up", 8)

    bench.turn(TO_SPECULATIVE)
    bench.engine.cancel_return.assert_called_once_with()
    assert bench.engine.request_return.call_args.args == ("catch-up", None)


@pytest.mark.parametrize("pinned", ["speculative", "observe"])
def test_a_pin_ends_a_look_at_a_sample(mocker: MockerFixture, pinned: OperatingMode) -> None:
    """Those left out would else speculate without a draft of theirs for as long as they run."""
    config, steering = SwitchConfig(), Steering("auto")
    bench, left_out = Bench(mocker), SampleLook(56, 8, 3, [1.0, 1.2])
    bench.switch = Switch(bench.engine, steered(config, steering), config, bench.observer, steering=steering)
    bench.engine.sample.side_effect = lambda mode, step, in_mode: LoadSample(
        mode, 3, 1, step, in_mode, 2.5, look=left_out if mode is Mode.SPECULATIVE else None
    )
    bench.turn(None)
    assert bench.switch.machine.mode is Mode.SPECULATIVE
    bench.switch.pin(pinned)
    bench.turn(None)
    assert bench.switch.machine.mode is Mode.PLAIN
    bench.turn(None)
    bench.engine.request_return.assert_called_once_with("catch-up", None)


def test_a_fault_ends_a_look(bench: Bench) -> None:
    bench.switch.on_fault("counting a decode step", ValueError("no"))
    bench.engine.end_look.assert_called_once_with()


def test_a_return_that_is_past_giving_up_still_completes(bench: Bench) -> None:
    bench.engine.cancel_return.return_value = False
    bench.turn(TO_PLAIN)
    bench.turn(TO_SPECULATIVE)
    bench.turn(TO_PLAIN)

    bench.switch.on_returned(SpeculativeEntry(3, 0))
    assert bench.switch.machine.mode is Mode.SPECULATIVE
    assert bench.observer.transition.call_args.args[0].reason == "idle"


def test_steps_in_a_mode_start_anew_with_it(bench: Bench) -> None:
    bench.switch.on_decode_step(Mode.SPECULATIVE)
    bench.turn(TO_PLAIN)
    bench.switch.on_decode_step(Mode.PLAIN)
    bench.turn(None)

    assert bench.engine.sample.call_args.args == (Mode.PLAIN, 2, 1)


def test_observe_recommends_and_never_acts(mocker: MockerFixture) -> None:
    bench = Bench(mocker, mode="observe")

    assert bench.turn(TO_PLAIN) is Mode.SPECULATIVE
    bench.turn(TO_PLAIN)

    assert bench.observer.recommendation.call_count == 1
    for act in (bench.engine.start_drain, bench.engine.enter_plain, bench.engine.request_return):
        act.assert_not_called()


@pytest.mark.parametrize("where", ["sample", "drained", "enter_plain", "start_drain"])
def test_a_fault_on_the_way_to_plain_ends_the_switching_in_speculative(bench: Bench, where: str) -> None:
    getattr(bench.engine, where).side_effect = RuntimeError("boom")

    assert bench.turn(TO_PLAIN) is Mode.SPECULATIVE
    assert bench.turn(TO_PLAIN) is Mode.SPECULATIVE

    assert bench.switch.faulted
    assert bench.observer.fault.call_count == 1


def test_a_fault_while_plain_stays_plain(bench: Bench) -> None:
    bench.turn(TO_PLAIN)
    bench.turn(TO_SPECULATIVE)
    bench.switch.on_fault("returning", RuntimeError("boom"))

    assert bench.turn(TO_SPECULATIVE) is Mode.PLAIN
    bench.engine.cancel_return.assert_called_once_with()
    assert bench.observer.fault.call_count == 1


def test_a_policy_and_an_observer_that_raise_are_contained(bench: Bench) -> None:
    bench.switch.policy = MagicMock(side_effect=ValueError("policy"))
    bench.observer.fault.side_effect = OSError("log")

    bench.switch.on_turn()
    bench.switch.on_turn()

    assert bench.switch.faulted
    assert bench.switch.policy.call_count == 1


def shown(bench: Bench) -> StepCounts:
    bench.switch.status()
    counts: StepCounts = bench.observer.status.call_args.args[1]
    return counts


def test_the_status_counts_steps_by_mode_and_since_it_was_entered(bench: Bench) -> None:
    for _ in range(3):
        bench.switch.on_decode_step(Mode.SPECULATIVE)
    bench.engine.drained.return_value = False
    bench.turn(TO_PLAIN)
    bench.switch.on_decode_step(Mode.SPECULATIVE)
    assert shown(bench) == StepCounts(speculative=4, plain=0, in_mode=4), "a drain is part of the stay"
    bench.engine.drained.return_value = True
    bench.turn(None)
    for _ in range(2):
        bench.switch.on_decode_step(Mode.PLAIN)
    assert shown(bench) == StepCounts(speculative=4, plain=2, in_mode=2)


def test_a_cancelled_drain_restarts_the_count(bench: Bench) -> None:
    bench.switch.on_decode_step(Mode.SPECULATIVE)
    bench.engine.drained.return_value = False
    bench.turn(TO_PLAIN)
    bench.turn(TO_SPECULATIVE)
    assert shown(bench).in_mode == 0


def test_a_recommendation_is_no_stay_in_a_mode(mocker: MockerFixture) -> None:
    bench = Bench(mocker, mode="observe")
    bench.switch.on_decode_step(Mode.SPECULATIVE)
    bench.turn(TO_PLAIN)
    bench.turn(None)
    assert bench.engine.sample.call_args.args == (Mode.PLAIN, 1, 0), "the policy's own count starts anew"
    assert shown(bench).in_mode == 1


class Known:
    """A policy whose answer changes with the batch alone, and after so many steps in a mode."""

    def __init__(self, *boundaries: int) -> None:
        self.boundaries = frozenset(boundaries)
        self.asked = 0
        self.wish: Wish | None = None

    def __call__(self, sample: LoadSample) -> Wish | None:
        self.asked += 1
        return self.wish


class TestSettled:
    """A policy that has nothing new to say is not asked, and no sample taken for it."""

    def settled(self, mocker: MockerFixture, policy: Any, **settings: Any) -> Bench:
        bench = Bench(mocker, **settings)
        bench.switch.policy = policy
        bench.switch.on_turn()
        return bench

    @pytest.mark.parametrize("mode", ["auto", "observe"])
    def test_it_is_asked_once_and_when_a_boundary_is_reached(self, mocker: MockerFixture, mode: str) -> None:
        policy = Known(3, 1)
        bench = self.settled(mocker, policy, mode=mode)
        asked = []
        for _ in range(6):
            bench.switch.on_turn()
            bench.switch.on_decode_step(Mode.SPECULATIVE)
            asked.append(policy.asked)
        assert asked == [1, 2, 2, 3, 3, 3]
        assert bench.engine.sample.call_count == 3

    def test_it_is_asked_when_the_batch_changes(self, mocker: MockerFixture) -> None:
        policy = Known()
        bench = self.settled(mocker, policy)
        for version in (2, 2, 3):
            bench.engine.batch_version.return_value = version
            bench.switch.on_turn()
        assert policy.asked == 3

    def test_another_policy_a_pin_and_what_it_has_learnt_are_heard_at_once(self, mocker: MockerFixture) -> None:
        policy, other = Known(), Known()
        bench = self.settled(mocker, policy)
        for change in (lambda: bench.switch.pin("plain"), bench.switch.reconsider, lambda: None):
            change()
            bench.switch.on_turn()
        assert policy.asked == 3
        bench.switch.policy = other
        bench.switch.on_turn()
        assert other.asked == 1

    def test_a_switch_is_followed_through(self, mocker: MockerFixture) -> None:
        policy = Known()
        bench = self.settled(mocker, policy)
        policy.wish, bench.engine.drained.return_value = TO_PLAIN, False
        bench.switch.reconsider()
        for _ in range(3):
            bench.switch.on_turn()
        assert bench.engine.drained.call_count == 3
        bench.engine.drained.return_value = True
        bench.switch.on_turn()
        assert bench.switch.machine.mode is Mode.PLAIN
        policy.asked = 0
        for _ in range(3):
            bench.switch.on_turn()
        assert policy.asked == 1, "once for PLAIN"
        policy.wish = TO_SPECULATIVE
        bench.switch.reconsider()
        for _ in range(3):
            bench.switch.on_turn()
        bench.engine.request_return.assert_called_once()
        bench.switch.on_returned(SpeculativeEntry(3, 0))
        policy.asked = 0
        bench.switch.on_turn()
        assert policy.asked == 1

    def test_a_batch_that_cannot_be_told_apart_is_contained(self, mocker: MockerFixture) -> None:
        bench = self.settled(mocker, Known())
        bench.engine.batch_version.side_effect = RuntimeError("boom")
        bench.switch.on_turn()
        assert bench.switch.faulted
        assert bench.observer.fault.call_count == 1

    def test_the_status_is_that_of_the_moment(self, mocker: MockerFixture) -> None:
        bench = self.settled(mocker, Known())
        for _ in range(5):
            bench.switch.on_turn()
            bench.switch.on_decode_step(Mode.SPECULATIVE)
        bench.switch.status()
        assert bench.observer.status.call_args.args[0].decode_step == 5

    def test_a_fault_leaves_a_status(self, mocker: MockerFixture) -> None:
        bench = self.settled(mocker, Known())
        bench.switch.on_fault("counting", RuntimeError("boom"))
        bench.engine.sample.side_effect = RuntimeError("boom")
        bench.switch.status()
        bench.observer.status.assert_called_once()

    def test_one_that_may_learn_is_asked_in_every_turn(self, mocker: MockerFixture) -> None:
        policy = MagicMock(side_effect=lambda sample: None, spec=lambda sample: None)
        bench = self.settled(mocker, policy)
        for _ in range(3):
            bench.switch.on_turn()
        assert policy.call_count == 4


class TestPins:
    def steered(self, mocker: MockerFixture, **settings: Any) -> Bench:
        bench = Bench(mocker, **settings)
        config = SwitchConfig(**settings)
        steering = Steering(config.mode)
        policy = around(config, steered(config, steering))
        bench.switch = Switch(bench.engine, policy, config, bench.observer, steering=steering)
        return bench

    def test_a_pin_is_followed_at_once_and_taken_off_again(self, mocker: MockerFixture) -> None:
        bench = self.steered(mocker)
        assert bench.turn(None) is Mode.SPECULATIVE
        bench.switch.pin("plain")
        assert bench.turn(None) is Mode.PLAIN
        assert bench.turn(None) is Mode.PLAIN
        bench.switch.pin(None)
        assert bench.turn(None) is Mode.PLAIN, "the watermarks' dwell is not over"
        bench.engine.request_return.assert_not_called()
        bench.switch.pin("speculative")
        bench.turn(None)
        bench.engine.request_return.assert_called_once()
        assert [call.args[0] for call in bench.observer.pinned.call_args_list] == ["plain", None, "speculative"]

    def test_a_server_pinned_to_auto_switches_though_it_was_started_in_one_mode(self, mocker: MockerFixture) -> None:
        bench = self.steered(mocker, mode="speculative", high_watermark=2, low_watermark=1, dwell_steps=1)
        bench.switch.on_decode_step(Mode.SPECULATIVE)
        assert bench.turn(None) is Mode.SPECULATIVE
        bench.switch.pin("auto")
        assert bench.turn(None) is Mode.PLAIN

    def test_what_only_observes_goes_back_to_speculating_first(self, mocker: MockerFixture) -> None:
        bench = self.steered(mocker, mode="observe", high_watermark=2, low_watermark=1, dwell_steps=1)
        bench.switch.pin("plain")
        assert bench.turn(None) is Mode.PLAIN
        bench.switch.pin(None)
        bench.turn(None)
        bench.engine.request_return.assert_called_once()
        bench.observer.recommendation.assert_not_called()
        bench.switch.on_returned(SpeculativeEntry(requests=3, tokens_caught_up=0))
        bench.switch.on_decode_step(Mode.SPECULATIVE)
        assert bench.turn(None) is Mode.SPECULATIVE
        bench.observer.recommendation.assert_called_once()

    def test_a_drain_ends_with_a_pin_to_speculative(self, mocker: MockerFixture) -> None:
        bench = self.steered(mocker)
        bench.engine.drained.return_value = False
        bench.switch.pin("plain")
        assert bench.turn(None) is Mode.DRAINING
        bench.switch.pin("speculative")
        assert bench.turn(None) is Mode.SPECULATIVE

    def test_requests_to_be_decoded_plain_outrank_a_pin(self, mocker: MockerFixture) -> None:
        bench = self.steered(mocker, plain_for=frozenset({"min_p"}))
        bench.engine.sample.side_effect = lambda mode, step, in_mode: LoadSample(
            mode, 1, 0, step, in_mode, None, frozenset({"min_p"})
        )
        bench.switch.pin("speculative")
        assert bench.turn(None) is Mode.PLAIN
