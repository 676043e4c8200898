"""The embedded models: real acceptance, the same answers as plain decode, the same again when run again."""

from __future__ import annotations

from functools import cache

import pytest

from specswitch.cpu_engine.acceptance import Answers, answers
from specswitch.cpu_engine.prompts import PROMPTS
from specswitch.cpu_engine.releases import installed_release

pytestmark = pytest.mark.real

NEW_TOKENS = 96
LEAST_ACCEPT_LENGTH = 1.8
DRAFT_TOKENS = 4


@cache
def plain() -> Answers:
    return answers("plain", NEW_TOKENS)


def chain_mode(algorithm: str) -> str:
    """The installed release's mode of that algorithm with topk 1, 3 steps and 4 draft tokens, without overlap."""
    wanted = {
        "speculative_algorithm": algorithm,
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": DRAFT_TOKENS,
    }
    return next(
        name for name, mode in installed_release().modes.items() if dict(mode.arguments) == wanted and not mode.overlap
    )


@pytest.mark.parametrize("algorithm", ["EAGLE", "EAGLE3", "STANDALONE"])
def test_drafts_are_accepted_and_change_no_answer(algorithm: str) -> None:
    speculative = answers(chain_mode(algorithm), NEW_TOKENS)

    assert speculative.tokens == plain().tokens
    assert all(speculative.verify_steps)
    assert speculative.accept_length is not None
    assert LEAST_ACCEPT_LENGTH <= speculative.accept_length < DRAFT_TOKENS


def test_a_second_run_is_the_same() -> None:
    mode = chain_mode("EAGLE")

    assert answers(mode, NEW_TOKENS) == answers(mode, NEW_TOKENS)


def test_answers_differ_and_do_not_fall_into_a_short_loop() -> None:
    tokens = plain().tokens

    assert len({tuple(ids) for ids in tokens}) == len(PROMPTS)
    for ids in tokens:
        assert len(ids) == NEW_TOKENS
        tail = ids[NEW_TOKENS // 2 :]
        assert not any(tail[period:] == tail[:-period] for period in range(1, len(tail) // 2))
