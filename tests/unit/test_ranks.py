"""Rank 0 decides, all follow; a rank that is missing a decision or looks different is told at once."""

from __future__ import annotations

import pytest

from specswitch.policy import Wish
from specswitch.ranks import HEARTBEAT_STEPS, Decision, Follower, Leader, RankDisagreement
from specswitch.signals import LoadSample, Mode

SAMPLE = LoadSample(Mode.SPECULATIVE, 4, 0, 10, 10, None)


def leader(wishes: list[Wish | None]) -> tuple[Leader, list[Decision]]:
    sent: list[Decision] = []
    remaining = iter(wishes)
    return Leader(lambda sample: next(remaining), sent.append), sent


def test_a_wish_is_acted_upon_once_it_has_come_back() -> None:
    wish = Wish(Mode.PLAIN, "busy")
    rank0, sent = leader([wish, None])
    follower = Follower()

    assert rank0(SAMPLE) is None
    assert follower(SAMPLE) is None
    for rank in (rank0, follower):
        rank.deliver(sent[0])

    assert rank0(SAMPLE) == wish
    assert follower(SAMPLE) == wish


def test_the_same_wish_is_sent_again_only_as_a_heartbeat() -> None:
    wish = Wish(Mode.PLAIN, "busy")
    rank0, sent = leader([wish] * 3)

    rank0(SAMPLE)
    rank0(SAMPLE._replace(decode_step=SAMPLE.decode_step + HEARTBEAT_STEPS - 1))
    assert len(sent) == 1
    rank0(SAMPLE._replace(decode_step=SAMPLE.decode_step + HEARTBEAT_STEPS))
    assert [decision.epoch for decision in sent] == [1, 2]


def test_a_return_of_a_sample_and_one_of_all_are_two_wishes() -> None:
    wishes = [Wish(Mode.SPECULATIVE, "look", sampled=8), Wish(Mode.SPECULATIVE, "all")]
    rank0, sent = leader(wishes)
    rank0(SAMPLE)
    rank0(SAMPLE)
    assert [decision.wish for decision in sent] == wishes


def test_a_rank_in_another_state_is_told() -> None:
    rank0, sent = leader([Wish(Mode.PLAIN, "busy")])
    follower = Follower()
    rank0(SAMPLE)
    follower(SAMPLE._replace(decode_step=11))

    with pytest.raises(RankDisagreement, match="diverged"):
        follower.deliver(sent[0])


def test_a_missing_decision_is_told() -> None:
    rank0, sent = leader([Wish(Mode.PLAIN, "busy"), Wish(Mode.SPECULATIVE, "idle")])
    follower = Follower()
    for rank in (rank0, rank0):
        rank(SAMPLE)
    follower(SAMPLE)

    with pytest.raises(RankDisagreement, match="decision 2 arrived where 1 was expected"):
        follower.deliver(sent[1])
