"""Where the target's hidden states of PLAIN are kept, the draft catches up without the target running again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cases import Case, cases
from draft_truth import check_kept, really_seen
from switching import (
    Request,
    Scenario,
    assert_same_answers,
    at_random,
    open_switched,
    plain_answers,
    run,
    workload,
)

from specswitch.cpu_engine.inprocess import InProcessScheduler, Output
from specswitch.engine import v2_compat
from specswitch.engine.hooks import InstanceHooks
from specswitch.engine.kept_hidden import KeptHidden
from specswitch.engine.pause import PauseBudget
from specswitch.signals import Mode

pytestmark = pytest.mark.real

PLAIN_FROM, PLAIN_TO = 8, 48
"""Turns."""
REQUESTS = 4
VOCAB_SIZE = 250
WANTED = {
    # SGLang 0.5.12
    "eagle-topk4-v1-page1",
    "eagle3-v1-page1",
    "eagle-v2-page16",
    "eagle3-v2-page1",
    "standalone-v1-page1",
    "standalone-v2-page1",
    # SGLang 0.5.13 and later
    "eagle-topk1-overlap-page16",
    "eagle3-topk4-overlap-page1",
    "eagle-topk4-no-overlap-page1",
    "standalone-topk1-overlap-page1",
}


@pytest.fixture(scope="module")
def plain() -> dict[str, Output]:
    return plain_answers(requests("again"))


@pytest.fixture(scope="module", params=[case for case in cases() if str(case) in WANTED], ids=str)
def server(request: pytest.FixtureRequest, plain: dict[str, Output]) -> Iterator[InProcessScheduler]:
    case: Case = request.param
    budget = [] if case.mode.startswith("standalone") else ["--specswitch-draft-kv-budget", "1"]
    with open_switched(
        **case.options, flags=["--specswitch-max-pause-ms", "1000", *budget], max_total_tokens=4096
    ) as opened:
        yield opened


def requests(prefix: str) -> list[Request]:
    """All at once, no two with the same first token: a STANDALONE draft would have seen the other's second."""
    made = workload(7, REQUESTS, VOCAB_SIZE, max_new_tokens=90, prefix=prefix)
    return [
        Request(request.rid, [len(prefix) * REQUESTS + index, *request.input_ids[1:]], request.max_new_tokens)
        for index, request in enumerate(made)
    ]


def through_plain(turn: int, mode: Mode) -> Mode:
    return Mode.PLAIN if PLAIN_FROM <= turn < PLAIN_TO else Mode.SPECULATIVE


@contextmanager
def extended_by_the_target(server: InProcessScheduler) -> Iterator[list[int]]:
    """Tokens of each extend that the target runs."""
    seen: list[int] = []
    hooks = InstanceHooks()

    def forward(original: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        if forward_batch.forward_mode.is_extend() and not forward_batch.forward_mode.is_target_verify():
            seen.append(len(forward_batch.input_ids))
        return original(forward_batch, *args, **kwargs)

    hooks.around(server.scheduler.tp_worker.model_runner, "forward", forward)
    try:
        yield seen
    finally:
        hooks.remove_all()


def test_the_target_does_not_run_again(server: InProcessScheduler, plain: dict[str, Output]) -> None:
    engine = server.scheduler.specswitch.engine
    made = requests("again")
    before = engine.draft_stats.tokens_written_alone
    with extended_by_the_target(server) as extended:
        outcome = run(server, Scenario(made, through_plain))
    assert outcome.switches == 2
    assert_same_answers(outcome, plain)
    assert engine.draft_stats.tokens_written_alone - before >= REQUESTS * (PLAIN_TO - PLAIN_FROM - 5)
    assert engine.draft_stats.tokens_caught_up_aside == 0
    prompts = sum(len(request.input_ids) for request in made)
    least = PauseBudget(50.0, 8192).sizes[0]
    assert sum(extended) <= prompts + max(least, REQUESTS * 6), extended


def test_the_draft_kv_is_what_a_prefill_writes(server: InProcessScheduler) -> None:
    """Right after the return, for all tokens but the last few, which the return's own forward writes."""
    checked = 0

    def wish(turn: int, mode: Mode) -> Mode:
        nonlocal checked
        if turn == PLAIN_TO + 6 and mode is Mode.SPECULATIVE:
            for req in (req for req in server.scheduler.running_batch.reqs if not req.finished()):
                length = v2_compat.committed_len(req)
                known = min(length, len(req.origin_input_ids) + len(req.output_ids) - 1)
                seen = really_seen(server, req, known)
                ended = len(req.origin_input_ids) + PLAIN_TO - 10
                assert all(seen[:ended]), (req.rid, [index for index, right in enumerate(seen) if not right])
                checked += 1
        return through_plain(turn, mode)

    run(server, Scenario(requests("written"), wish))
    assert checked >= REQUESTS - 1


def test_what_is_kept_is_never_another_token_s(server: InProcessScheduler) -> None:
    """Through cold returns, whose gaps stay open while slots are written by verification and prefills, through aborts
    and retractions, and in a ring that is soon overwritten."""
    engine, dice, found = server.scheduler.specswitch.engine, random.Random(3), 0
    if engine._alone.kept is None:
        pytest.skip("STANDALONE keeps nothing")
    wanted = at_random(5, 0.15)

    def wish(turn: int, mode: Mode) -> Mode:
        nonlocal found
        server.scheduler.specswitch.draft_kv = "cold" if dice.random() < 0.5 else "catch-up"
        if turn % 3 == 0:
            for req in (req for req in server.scheduler.running_batch.reqs if not req.finished() and req.output_ids):
                known = min(v2_compat.committed_len(req), len(req.origin_input_ids) + len(req.output_ids) - 1)
                found += check_kept(server, req, known)
        return wanted(turn, mode)

    made = workload(9, 14, VOCAB_SIZE, max_new_tokens=60, prefix="kept")
    anywhere = frozenset({Mode.PLAIN, Mode.SPECULATIVE})
    scenario = Scenario(made, wish, abort_in=anywhere, retract_in=anywhere)
    with pytest.MonkeyPatch.context() as patch:
        budget = 32 * 2**10 * (3 if engine.facts.algorithm == "EAGLE3" else 1)  # 64 rows
        patch.setattr(engine._alone, "kept", KeptHidden(budget, engine._alone.kept._nowhere, "cpu"))
        outcome = run(server, scenario)
        assert engine._alone.kept.overwritten > 0
    server.scheduler.specswitch.draft_kv = "catch-up"
    assert found > 100
    assert outcome.switches > 4
    assert outcome.paused_in
