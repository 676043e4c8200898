"""The goodput policy under tensor parallelism: step times differ on every rank, decisions do not."""

from __future__ import annotations

import pickle
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specswitch.costs import StepPoint, StepTime, SwitchCost
from specswitch.policy import Dwell, Goodput
from specswitch.policy.base import Policy
from specswitch.ranks import HEARTBEAT_STEPS, Decision, Follower, Leader, RankDisagreement
from specswitch.signals import LoadSample, LocalReadings, Mode, StepReading

SPECULATIVE, PLAIN = Mode.SPECULATIVE, Mode.PLAIN


class Rank:
    """One rank's mode and counters, moved by what its policy wishes for."""

    def __init__(self, policy: Policy, random: Random) -> None:
        self.policy = policy
        self.random = random
        self.mode = SPECULATIVE
        self.step = 0
        self.entered_at = 0
        self.switches: list[tuple[int, Mode]] = []
        self.readings: tuple[StepReading, ...] = ()

    def turn(self, size: int, accept: float) -> None:
        since = self.step - self.entered_at
        local = LocalReadings(self.readings)
        wish = self.policy(LoadSample(self.mode, size, 0, self.step, since, accept, local=local))
        if wish is not None and wish.mode is not self.mode:
            self.mode, self.entered_at = wish.mode, self.step
            self.switches.append((self.step, self.mode))
        self.step += 1
        tokens = round(size * accept) if self.mode is SPECULATIVE else size
        self.readings = (StepReading(self.mode, size, 0, tokens, self.random.uniform(0.0005, 0.05)),)


def goodput() -> Goodput:
    plain = StepTime([StepPoint(1, 0, 0.005), StepPoint(64, 0, 0.006)], 0.0)
    speculative = StepTime([StepPoint(1, 0, 0.007), StepPoint(64, 0, 0.015)], 0.0)
    return Goodput(plain, speculative, SwitchCost(0.001, 0.002, 1e-6), 2.0, 4.0)


def two_ranks() -> tuple[Rank, Rank, list[Decision]]:
    """Rank 0 leads.  What it sends waits in the list until the broadcast."""
    outbox: list[Decision] = []
    return Rank(Leader(Dwell(goodput(), 4), outbox.append), Random(1)), Rank(Follower(), Random(2)), outbox


def broadcast(ranks: tuple[Rank, Rank], outbox: list[Decision]) -> int:
    """Hand what was sent to both ranks; returns how many decisions there were."""
    sent = [pickle.loads(pickle.dumps(decision)) for decision in outbox]
    outbox.clear()
    for decision in sent:
        for rank in ranks:
            assert isinstance(rank.policy, Follower)
            rank.policy.deliver(decision)
    return len(sent)


def load(turn: int) -> tuple[int, float]:
    """Now a small batch that is predicted well, now a large one that is not."""
    return (64, 1.2) if turn // 25 % 2 else (1, 3.5)


@pytest.mark.parametrize("turns", [10_000])
def test_ranks_never_part_whatever_their_clocks_say(turns: int) -> None:
    first, second, outbox = two_ranks()
    for turn in range(turns):
        for rank in (first, second):
            rank.turn(*load(turn))
        broadcast((first, second), outbox)
        assert (first.mode, first.step) == (second.mode, second.step)
    assert first.switches == second.switches
    assert len(first.switches) > 40, "too few to have something to disagree about"


def test_left_to_themselves_they_would_part() -> None:
    """The noise above is enough to make two ranks decide differently: it is the leading that keeps them together."""
    ranks = [Rank(Dwell(goodput(), 4), Random(seed)) for seed in (1, 2)]
    for turn in range(10_000):
        for rank in ranks:
            rank.turn(*load(turn))
    assert ranks[0].switches != ranks[1].switches


@given(at=st.integers(1, 400))
@settings(max_examples=25, deadline=None)
def test_a_rank_gone_astray_is_told_within_a_heartbeat(at: int) -> None:
    first, second, outbox = two_ranks()
    for turn in range(at + HEARTBEAT_STEPS + 1):
        for rank in (first, second):
            rank.turn(*load(turn))
        if turn == at:
            second.step += 1
        if turn > at and outbox:
            with pytest.raises(RankDisagreement, match="diverged"):
                broadcast((first, second), outbox)
            return
        broadcast((first, second), outbox)
    raise AssertionError("nothing was told")
