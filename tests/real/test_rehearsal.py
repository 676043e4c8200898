"""What is run once at start leaves nothing behind, and is what a return runs."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
import torch
from cases import Case, draft_kv_cases
from draft_truth import draft_pool, draft_runner, rows_of
from switching import Request, Scenario, assert_same_answers, open_switched, plain_answers, run

from specswitch.cpu_engine.inprocess import Output
from specswitch.engine import rehearsal
from specswitch.engine.hooks import InstanceHooks
from specswitch.engine.pause import PauseBudget
from specswitch.signals import Mode

pytestmark = pytest.mark.real

SIZES = (32, 48, 2500)
REQUESTS = [Request(f"r{index}", [1, 40 + index, 7, 9, 60 + index], 400) for index in range(3)]


def there_and_back(turn: int, mode: Mode) -> Mode:
    return Mode.PLAIN if turn in range(20, 130) else Mode.SPECULATIVE


@pytest.fixture(scope="module")
def plain() -> dict[str, Output]:
    return plain_answers(REQUESTS)


SELECTED = pytest.mark.parametrize("case", draft_kv_cases(), ids=str)


@pytest.mark.parametrize("budget", ["0", "1"])
@SELECTED
def test_nothing_is_left_of_it(case: Case, budget: str, plain: dict[str, Output]) -> None:
    standalone = case.mode.startswith("standalone")
    if standalone and budget != "0":
        pytest.skip("its draft takes no hidden states")
    with open_switched(**case.options, flags=["--specswitch-draft-kv-budget", budget]) as server:
        scheduler, engine = server.scheduler, server.scheduler.specswitch.engine
        pools = scheduler.token_to_kv_pool_allocator, scheduler.req_to_token_pool
        free = [pool.available_size() for pool in pools]
        rows = scheduler.req_to_token_pool.req_to_token.clone()
        before = _written(scheduler)
        rehearsed = rehearsal.rehearse(scheduler, partial(engine.write_draft_kv, alone=standalone), SIZES)
        assert (rehearsed.forwards, rehearsed.most_tokens) == (len(SIZES), SIZES[-1])
        assert _written(scheduler) - before <= {0}
        assert free == [pool.available_size() for pool in pools]
        assert rows.equal(scheduler.req_to_token_pool.req_to_token)
        outcome = run(server, Scenario(REQUESTS, there_and_back))
    assert outcome.switches == 2
    assert outcome.status["fault"] is None
    assert_same_answers(outcome, plain)


@SELECTED
def test_every_forward_of_a_return_was_rehearsed(
    case: Case, plain: dict[str, Output], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rehearsal, "is_of_use", lambda scheduler: True)
    sizes: list[int] = []
    flags = ["--specswitch-log-format", "json", "--specswitch-max-pause-ms", "35"]
    with open_switched(**case.options, flags=flags, max_total_tokens=4096) as server:
        scheduler = server.scheduler
        runner = draft_runner(scheduler)

        def forward(original: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
            if forward_batch.forward_mode.name == "EXTEND":
                sizes.append(len(forward_batch.input_ids))
            return original(forward_batch, *args, **kwargs)

        InstanceHooks().around(runner, "forward", forward)
        outcome = run(server, Scenario(REQUESTS, there_and_back))
        stats = scheduler.specswitch.engine.draft_stats
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    (rehearsed,) = [event for event in events if event["event"] == "specswitch.rehearsal"]
    count = rehearsed["forwards"]
    assert sizes[:count] == list(PauseBudget(35.0, 4096).sizes)
    assert rehearsed["most_tokens"] == sizes[count - 1] == 1024
    prompts, *returns = sizes[count:]
    assert prompts == sum(len(request.input_ids) for request in REQUESTS)
    assert len(returns) >= 2  # one beside the batch at least, unless the draft does all by itself
    assert set(returns) <= set(sizes[:count])
    if case.mode.startswith("standalone"):  # what fills a forward up was not missed
        assert stats.tokens_caught_up + stats.tokens_written_alone == stats.tokens_missed > 0
    assert outcome.switches == 2
    assert_same_answers(outcome, plain)


@SELECTED
def test_a_rehearsal_that_fails_is_told_and_leaves_the_server_switching(
    case: Case, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*args: Any) -> None:
        raise RuntimeError("no such row")

    monkeypatch.setattr(rehearsal, "is_of_use", lambda scheduler: True)
    monkeypatch.setattr(rehearsal, "rehearse", fails)
    with open_switched(**case.options, flags=["--specswitch-log-format", "json"]) as server:
        outcome = run(server, Scenario(REQUESTS[:1], lambda turn, mode: Mode.PLAIN if turn < 20 else Mode.SPECULATIVE))
    assert "could not be tried at start (RuntimeError: no such row)" in capsys.readouterr().err
    assert outcome.switches == 2
    assert outcome.status["fault"] is None


def _written(scheduler: Any) -> set[int]:
    """Slots of the draft's and the target's pool that hold anything."""
    pools = draft_pool(scheduler), scheduler.token_to_kv_pool_allocator.get_kvcache()
    slots = torch.arange(pools[0].k_buffer[0].shape[0])
    return {slot for pool in pools for slot in rows_of(pool, slots).any(1).nonzero().flatten().tolist()}
