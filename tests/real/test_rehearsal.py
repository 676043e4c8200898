"""What is run once at start leaves nothing behind, and is what a return runs."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from cases import Case, cases
from draft_truth import draft_pool, rows_of
from switching import Request, Scenario, assert_same_answers, open_switched, plain_answers, run

from specswitch.engine import rehearsal
from specswitch.signals import Mode

pytestmark = pytest.mark.real

WANTED = {
    # SGLang 0.5.12
    "eagle-topk4-v1-page1",
    "eagle-topk1-v1-page16",
    "eagle3-v2-page1",
    "eagle-v2-page16",
    "standalone-v2-page1",
    # SGLang 0.5.13 and later
    "eagle-topk1-overlap-page16",
    "eagle3-topk4-overlap-page1",
    "eagle-topk4-no-overlap-page1",
    "standalone-topk1-overlap-page1",
}
SIZES = (32, 48, 320, 10**6)


@pytest.mark.parametrize("budget", ["0", "1"])
@pytest.mark.parametrize("case", [case for case in cases() if str(case) in WANTED], ids=str)
def test_nothing_is_left_of_it(case: Case, budget: str) -> None:
    standalone = case.mode.startswith("standalone")
    if standalone and budget != "0":
        pytest.skip("its draft takes no hidden states")
    requests = [Request(f"r{index}", [1, 40 + index, 7, 9, 60 + index], 60) for index in range(3)]

    def there_and_back(turn: int, mode: Mode) -> Mode:
        return Mode.PLAIN if turn % 40 in range(10, 30) else Mode.SPECULATIVE

    with open_switched(**case.options, flags=["--specswitch-draft-kv-budget", budget]) as server:
        scheduler, engine = server.scheduler, server.scheduler.specswitch.engine
        assert engine.rehearse() is None  # there is nothing to load on a CPU
        pools = scheduler.token_to_kv_pool_allocator, scheduler.req_to_token_pool
        free = [pool.available_size() for pool in pools]
        rows = scheduler.req_to_token_pool.req_to_token.clone()
        before = _written(scheduler)
        rehearsed = rehearsal.rehearse(scheduler, partial(engine.write_draft_kv, alone=standalone), SIZES)
        assert (rehearsed.forwards, rehearsed.most_tokens) == (len(SIZES) - 1, SIZES[-2])
        assert _written(scheduler) - before <= {0}
        assert free == [pool.available_size() for pool in pools]
        assert rows.equal(scheduler.req_to_token_pool.req_to_token)
        outcome = run(server, Scenario(requests, there_and_back))
    assert outcome.switches >= 2
    assert outcome.status["fault"] is None
    assert_same_answers(outcome, plain_answers(requests))


def _written(scheduler: Any) -> set[int]:
    """Slots of the draft's and the target's pool that hold anything."""
    pools = draft_pool(scheduler), scheduler.token_to_kv_pool_allocator.get_kvcache()
    slots = torch.arange(pools[0].k_buffer[0].shape[0])
    return {slot for pool in pools for slot in rows_of(pool, slots).any(1).nonzero().flatten().tolist()}
