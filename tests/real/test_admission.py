"""The request limit under specswitch: a plain server's, unless the operator has set one."""

from __future__ import annotations

from importlib import metadata

import pytest
from switching import Request, Scenario, assert_same_answers, open_plain, open_switched, plain_answers, run

from specswitch.signals import Mode

OLD = metadata.version("sglang").startswith("0.5.12")
EAGLE = "eagle-v2" if OLD else "eagle-topk1"
OPEN = {"max_running_requests": False}  # the flag is left out
POOL = {"max_total_tokens": 2048}

pytestmark = pytest.mark.real


def plain_limit() -> int:
    with open_plain("plain", **OPEN, **POOL) as server:
        return server.scheduler.max_running_requests


def test_the_limit_is_a_plain_servers_and_every_buffer_holds_it() -> None:
    expected = plain_limit()
    assert 48 < expected <= POOL["max_total_tokens"] // 2
    with open_switched(EAGLE, **OPEN, **POOL) as server:
        scheduler = server.scheduler
        assert scheduler.max_running_requests == expected
        assert scheduler.req_to_token_pool.size == expected
        if OLD:
            assert scheduler.future_map.future_limit >= 3 * expected
    with open_switched("ngram", **OPEN, **POOL) as server:
        assert server.scheduler.max_running_requests == expected
        if OLD:
            assert server.scheduler.draft_worker.max_batch_size == expected


def test_more_than_48_requests_run_together() -> None:
    with open_switched(EAGLE, flags=["--specswitch-mode", "plain"], checks=False, **OPEN, **POOL) as server:
        for number in range(56):
            server.add(f"r{number}", [1, 5 + number], 4)
        most = 0
        while not server.idle:
            server.step()
            most = max(most, len(server.scheduler.running_batch.reqs))
        assert most == 56
        assert all(len(output.output_ids) == 4 for output in server.outputs().values())


def test_a_limit_that_the_operator_has_set_stays() -> None:
    with open_switched(EAGLE, max_running_requests=5, **POOL) as server:
        assert server.scheduler.max_running_requests == 5


@pytest.mark.parametrize("mode", ["observe", "speculative"])
def test_a_server_that_never_decodes_plainly_keeps_sglangs_limit(mode: str) -> None:
    with open_switched(EAGLE, flags=["--specswitch-mode", mode], **OPEN, **POOL) as server:
        assert server.scheduler.max_running_requests == 48


def test_a_row_that_cannot_hold_the_reserve_is_not_returned_to() -> None:
    """SGLang's rows have no room for a tree's reserve at the end of the context."""
    limits = {"context_length": 64}
    requests = [Request(f"long-{index}", [1, *range(20, 45 + index)], 60) for index in range(3)]

    def speculative_at_the_end(turn: int, mode: Mode) -> Mode:
        return Mode.PLAIN if turn < 28 else Mode.SPECULATIVE

    plain = plain_answers(requests, **limits)
    with open_switched("eagle-topk4-v1" if OLD else "eagle-topk4", **limits) as server:
        outcome = run(server, Scenario(requests, speculative_at_the_end))
    assert_same_answers(outcome, plain)
    assert outcome.steps["PLAIN DECODE plain"] > 20
    assert outcome.status["mode"] == "SPECULATIVE"
