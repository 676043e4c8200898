"""Acceptance after a stay in PLAIN: that of a server which never switched, for the same tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cases import Case, cases
from draft_truth import draft_pool
from switching import open_switched

from specswitch.cpu_engine.inprocess import InProcessScheduler
from specswitch.cpu_engine.prompts import PROMPTS
from specswitch.cpu_engine.releases import DEFAULT_MODELS
from specswitch.policy import Wish
from specswitch.signals import LoadSample, Mode

pytestmark = pytest.mark.real

PLAIN_FROM, PLAIN_TO = 20, 100
"""Output lengths of the request furthest behind at which PLAIN begins and ends."""
ANSWER = 170
REQUESTS = 6
WANTED = {
    "eagle-topk4-v1-page1",
    "eagle3-v1-page1",
    "eagle-v2-page1",
    "standalone-v2-page1",
    "eagle-topk1-overlap-page1",
    "eagle3-topk1-overlap-page1",
    "standalone-topk1-overlap-page1",
}


def _budgets(case: Case) -> tuple[int, ...]:
    """MiB for hidden states; EAGLE3 keeps the widest ones."""
    return (0, 4) if case.mode.startswith("eagle3") else (0,)


@pytest.fixture(
    scope="module",
    params=[(case, budget) for case in cases() if str(case) in WANTED for budget in _budgets(case)],
    ids=lambda param: f"{param[0]}-{param[1]}MiB",
)
def server(request: pytest.FixtureRequest) -> Iterator[InProcessScheduler]:
    case, budget = request.param
    with open_switched(
        **case.options,
        flags=["--specswitch-max-pause-ms", "1000", "--specswitch-draft-kv-budget", str(budget)],
        max_total_tokens=8192,
        max_running_requests=REQUESTS,
    ) as opened:
        yield opened


@dataclass
class Acceptance:
    """Verify steps that began at an output position of at least ``PLAIN_TO``, or anywhere for a second turn."""

    tokens: int = 0
    steps: int = 0
    outputs: dict[str, list[int]] = field(default_factory=dict)

    @property
    def length(self) -> float:
        return self.tokens / self.steps


def play(
    server: InProcessScheduler, prompts: dict[str, list[int]], wanted: Callable[[int], Mode], draft_kv: str, since: int
) -> Acceptance:
    """Run the requests; ``wanted`` gives the mode for the shortest output so far."""
    switch = server.scheduler.specswitch
    switch.draft_kv = draft_kv
    reqs: dict[str, Any] = {}
    found = Acceptance()

    def policy(sample: LoadSample) -> Wish:
        shortest = min((len(req.output_ids) for req in reqs.values()), default=0)
        return Wish(wanted(shortest), "test")

    switch.policy = policy
    for rid, ids in prompts.items():
        server.add(rid, ids, ANSWER)
    server.step()
    while not server.idle:
        for batch in (server.scheduler.running_batch, server.scheduler.last_batch):
            for req in batch.reqs if batch is not None else ():
                if req.rid in prompts:
                    reqs[req.rid] = req
        before = {
            rid: (len(req.output_ids), req.spec_verify_ct, req.spec_num_correct_drafts) for rid, req in reqs.items()
        }
        server.step()
        for rid, (length, steps, correct) in before.items():
            req = reqs[rid]
            if length >= since and req.spec_verify_ct > steps:
                found.steps += req.spec_verify_ct - steps
                found.tokens += req.spec_verify_ct - steps + req.spec_num_correct_drafts - correct
    server.run_until_idle()
    found.outputs = {rid: server.outputs()[rid].output_ids for rid in prompts}
    return found


def _prompts(name: str) -> dict[str, list[int]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(DEFAULT_MODELS) / "target" / "tokenizer.json"))
    return {f"{name}{index}": tokenizer.encode(text).ids for index, text in enumerate(PROMPTS[:REQUESTS])}


def _second_turn(name: str, first: dict[str, list[int]], outputs: dict[str, list[int]]) -> dict[str, list[int]]:
    return {f"{name}{index}": first[rid] + outputs[rid] + [outputs[rid][0]] for index, rid in enumerate(first)}


def test_acceptance_after_reentry_and_over_plain_prefixes(
    server: InProcessScheduler, record_property: Callable[[str, object], None]
) -> None:
    def through_plain(shortest: int) -> Mode:
        return Mode.PLAIN if PLAIN_FROM <= shortest < PLAIN_TO else Mode.SPECULATIVE

    never_prompts, warm_prompts, cold_prompts = _prompts("never"), _prompts("warm"), _prompts("cold")
    never = play(server, never_prompts, lambda shortest: Mode.SPECULATIVE, "catch-up", PLAIN_TO)
    never_second = play(
        server, _second_turn("never2-", never_prompts, never.outputs), lambda s: Mode.SPECULATIVE, "catch-up", 0
    )
    _flush(server)
    warm = play(server, warm_prompts, through_plain, "catch-up", PLAIN_TO)
    _flush(server)
    cold = play(server, cold_prompts, through_plain, "cold", PLAIN_TO)
    _flush(server)
    plain_prompts = _prompts("plain")
    plain = play(server, plain_prompts, lambda s: Mode.PLAIN, "catch-up", PLAIN_TO)
    second = play(
        server, _second_turn("second-", plain_prompts, plain.outputs), lambda s: Mode.SPECULATIVE, "catch-up", 0
    )
    figures = {
        "never switched": never.length,
        "catch-up": warm.length,
        "cold": cold.length,
        "second turn, never switched": never_second.length,
        "second turn over PLAIN": second.length,
    }
    print(server.mode.name, {name: round(value, 3) for name, value in figures.items()})
    for name, value in figures.items():
        record_property(name, round(value, 3))
    assert list(warm.outputs.values()) == list(never.outputs.values())
    assert list(second.outputs.values()) == list(never_second.outputs.values())
    assert warm.length >= 0.95 * never.length
    assert second.length >= 0.95 * never_second.length


def _flush(server: InProcessScheduler) -> None:
    """Empty the prefix cache, and leave nothing in the draft's that the same tokens at the same slots could use."""
    assert server.scheduler.flush_cache()
    pool = draft_pool(server.scheduler)
    for buffer in pool.k_buffer + pool.v_buffer:
        buffer.normal_()
