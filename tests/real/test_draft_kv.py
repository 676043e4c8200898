"""Which tokens the draft has not seen is tracked exactly, whatever is interleaved: the truth is computed afresh."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from cases import Case, draft_kv_cases
from draft_truth import GapChecker
from switching import Request, Scenario, open_switched, run

from specswitch.cpu_engine.inprocess import InProcessScheduler
from specswitch.engine import draft_alone
from specswitch.policy import Wish
from specswitch.signals import LoadSample, Mode

pytestmark = pytest.mark.real

TURNS = 140


def _budgets(case: Case) -> list[int]:
    """Budgets for hidden states in KiB: none, and one of 64 rows that is soon overwritten or one that holds all."""
    if case.mode.startswith("standalone"):
        return [0]
    return [0, 96 if case.mode.startswith("eagle3") else 1024]


@pytest.fixture(
    scope="module",
    params=[(case, budget) for case in draft_kv_cases() for budget in _budgets(case)],
    ids=lambda param: f"{param[0]}-{param[1]}KiB",
)
def server_and_budget(request: pytest.FixtureRequest) -> Iterator[tuple[InProcessScheduler, int]]:
    case, budget = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draft_alone, "_MIB", 2**10)
        with open_switched(
            **case.options,
            # every catch-up of more than 32 tokens is split
            flags=["--specswitch-max-pause-ms", "1", "--specswitch-draft-kv-budget", str(budget)],
            max_total_tokens=1536,
            max_running_requests=5,
            chunked_prefill_size=48,
        ) as opened:
            yield opened, budget


class _Wanderer:
    """Wishes for the other mode now and then, sometimes for a look at a few requests alone."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._wanted = Mode.SPECULATIVE
        self._sampled: int | None = None
        self.left_out = 0
        """Requests that a look had left out, summed over the turns."""

    def __call__(self, sample: LoadSample) -> Wish:
        if self._dice.random() < 0.12:
            self._wanted = Mode.PLAIN if self._wanted is Mode.SPECULATIVE else Mode.SPECULATIVE
            self._sampled = self._dice.choice([None, 1, 2])
        if sample.look is not None:
            self.left_out += sample.look.left_out
        return Wish(self._wanted, "a throw of the dice", sampled=self._sampled)


def test_gaps_are_the_truth_through_random_interleavings(server_and_budget: tuple[InProcessScheduler, int]) -> None:
    server, budget = server_and_budget
    dice = random.Random(1)
    switch = server.scheduler.specswitch
    switch.policy = wanderer = _Wanderer(dice)
    vocab_size = server.scheduler.model_config.vocab_size
    prompts: dict[str, list[int]] = {}
    checker = GapChecker(server, prompts)
    for turn in range(TURNS):
        if dice.random() < 0.2 and len(server.scheduler.waiting_queue) < 3:
            _arrive(server, dice, prompts, turn, vocab_size)
        running = [req for req in server.scheduler.running_batch.reqs if not req.finished()]
        if running and dice.random() < 0.02:
            server.abort(dice.choice(running).rid)
        if running and dice.random() < 0.01:
            server.pause_retract()
        server.step()
        assert not switch.faulted, switch.status()["fault"]
        checker.after_turn()
        if turn % 2 == 0:
            checker.check()
    server.run_until_idle()
    stats = switch.engine.draft_stats
    assert checker.seen > 200
    assert checker.unseen > 40
    assert wanderer.left_out > 2
    assert switch.status()["transitions"] > 8
    if server.scheduler.page_size == 1:  # larger pages of one answer are seldom shared so soon
        assert stats.prefix_tokens_filled > 0, "no prefix decoded in PLAIN was reused"
    _check_who_wrote(switch.engine, budget)


def _check_who_wrote(engine: Any, budget: int) -> None:
    stats = engine.draft_stats
    if engine.facts.algorithm == "STANDALONE":
        assert stats.tokens_written_alone > 0
        assert stats.tokens_caught_up_aside == 0, "the target ran again for a draft that needs tokens alone"
        return
    if budget == 0:
        assert stats.tokens_caught_up_aside > 0, "no catch-up was split"
        return
    overwritten = engine._alone.kept.overwritten
    assert stats.tokens_written_alone > 0
    assert (overwritten > 0) is (budget < 1024)


def test_a_prompt_that_ends_within_an_answer_decoded_plain(server_and_budget: tuple[InProcessScheduler, int]) -> None:
    """The cache matches all of it but the last tokens, and then puts its own slots of those into the request's row;
    ``run`` checks that they are not taken for what the prefill wrote elsewhere."""
    server, _ = server_and_budget
    prompt = [200, 7, 9, 11, 13, 17, 19, 23]
    run(server, Scenario([Request("answered", prompt, 60, mode=Mode.PLAIN)], lambda turn, mode: Mode.PLAIN))
    conversation = prompt + server.outputs()["answered"].output_ids
    begun = [
        Request(f"begun-{length}", conversation[:length], 12, turn=9 * index, mode=Mode.SPECULATIVE)
        for index, length in enumerate((24, 32, 33, 48, 49))
    ]
    outcome = run(server, Scenario(begun, lambda turn, mode: Mode.SPECULATIVE))
    for request in begun:
        expected = conversation[len(request.input_ids) :][:12]
        assert outcome.outputs[request.rid].output_ids == expected


def _arrive(
    server: InProcessScheduler, dice: random.Random, prompts: dict[str, list[int]], turn: int, vocab_size: int
) -> None:
    """A new request, or the next turn of a conversation: an earlier prompt, its answer, and a few tokens more."""
    rid = f"r{turn}"
    answered = [
        earlier
        for earlier, output in server.outputs().items()
        if output.finished and earlier in prompts and len(prompts[earlier]) + len(output.output_ids) < 300
    ]
    more = [dice.randrange(4, vocab_size) for _ in range(dice.choice([3, 9, 17, 40, 70]))]
    if answered and dice.random() < 0.7:
        earlier = dice.choice(answered)
        prompts[rid] = prompts[earlier] + server.outputs()[earlier].output_ids + more[:9]
    else:
        prompts[rid] = [4 + turn, *more]  # no two share a first token: a STANDALONE draft would see the other's second
    server.add(rid, prompts[rid], dice.randrange(10, 70))
