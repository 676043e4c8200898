"""Leave out one step of a transition of the v2 engine, and the ordinary checks must notice: see ``test_mutations``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from packaging.version import Version
from switching import Scenario, assert_same_answers, open_switched, run
from test_mutations import (
    ANYTHING,
    DRAFT,
    MISCOUNTED,
    OPTIONS,
    RETRACTED,
    STUCK,
    LeaveOut,
    Mutation,
    Play,
    entering_plain_keeps,
    launches_speculatively,
    method,
    nothing,
    plain,
    play_conversation,
    play_crowd,
    play_twins,
    play_unequal,
    stock,
    unequal,
)

from specswitch.cpu_engine.inprocess import InProcessScheduler, Output
from specswitch.cpu_engine.releases import installed_release
from specswitch.engine.hooks import InstanceHooks
from specswitch.signals import Mode

RELEASE = Version(installed_release().version)

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(Version("0.5.13") > RELEASE, reason="the steps are those of the engine for SGLang 0.5.13 on"),
]

__all__ = ["plain"]


def play_nobody_runs(server: InProcessScheduler, plain: dict[str, Output]) -> None:
    """Requests arrive while PLAIN and nobody runs."""
    outcome = run(server, Scenario(unequal(), lambda turn, mode: Mode.PLAIN))
    assert_same_answers(outcome, plain)
    assert not outcome.steps["PLAIN DECODE spec"], "speculated while PLAIN"


PLAYS: dict[Play, dict[str, Any]] = {**OPTIONS, play_nobody_runs: {}}


# Ways to leave a step out


def in_module(path: str, name: str, instead: Any) -> LeaveOut:
    """Something in a module of the engine, or of a class in one, is replaced."""

    def leave_out(server: InProcessScheduler, hooks: InstanceHooks) -> None:
        module, _, attribute = path.partition(":")
        owner = importlib.import_module(f"specswitch.engine.{module}")
        hooks.replace(getattr(owner, attribute) if attribute else owner, name, instead)

    return leave_out


def on_engine(path: str, name: str, instead: Any) -> LeaveOut:
    """Something of an object that the engine holds is replaced."""

    def leave_out(server: InProcessScheduler, hooks: InstanceHooks) -> None:
        hooks.replace(getattr(server.scheduler.specswitch.engine, path), name, instead)

    return leave_out


def entering_plain_keeps_the_relay(server: InProcessScheduler, hooks: InstanceHooks) -> None:
    """What the next step reads is what the last one left."""

    def enter_plain(original: Callable[[], Any]) -> Any:
        relayed = server.scheduler.future_map.output_tokens_buf
        before = relayed.clone()
        entry = original()
        relayed.copy_(before)
        return entry

    hooks.around(server.scheduler.specswitch.engine, "enter_plain", enter_plain)


def the_tail_is_counted_wrongly(server: InProcessScheduler, hooks: InstanceHooks) -> None:
    engine = server.scheduler.specswitch.engine
    hooks.replace(engine, "_processor_counts_the_tail", not engine._processor_counts_the_tail)


RESERVED = r"'arrival-\d', \d+, \d+"
"""The invariant of PLAIN: what a request holds are its tokens' slots, to the end of the page."""

CHAIN, TREE, LM, NGRAM = "eagle-topk1", "eagle-topk4", "standalone-topk1", "ngram"

MUTATIONS = [
    # SPECULATIVE -> PLAIN
    *(
        Mutation(
            "give reserved slots back",
            CHAIN,
            in_module("v2_batch:Reserve", "give_back", lambda reserve, allocator: 0),
            RESERVED,
            page_size=page_size,
        )
        for page_size in (1, 16)
    ),
    Mutation("wait for the result in flight", CHAIN, method("_in_flight", lambda: False), ANYTHING),
    Mutation("rebuild seq_lens", TREE, entering_plain_keeps("seq_lens"), ANYTHING),
    Mutation("rebuild seq_lens_cpu", CHAIN, entering_plain_keeps("seq_lens_cpu"), ANYTHING, page_size=16),
    Mutation("stash the last token", NGRAM, entering_plain_keeps_the_relay, ANYTHING),
    Mutation("drop spec_info", CHAIN, entering_plain_keeps("spec_info"), ANYTHING),
    Mutation("note where the draft stops", TREE, in_module("v2", "open_gap", nothing), DRAFT),
    # PLAIN
    *(Mutation("swap the worker", mode, launches_speculatively, ANYTHING) for mode in (CHAIN, TREE, LM, NGRAM)),
    *(
        Mutation(
            "bring prefilled batches into plain form",
            mode,
            method("_bring_into_plain_form", nothing),
            "speculated while PLAIN",
            play_nobody_runs,
        )
        for mode in (CHAIN, NGRAM)
    ),
    *(
        Mutation("keep the tokens of a prefill", mode, method("_note_prefilled", nothing), ANYTHING)
        for mode in (CHAIN, NGRAM)
    ),
    Mutation(
        "keep the log line from dividing by zero",
        CHAIN,
        stock("metrics_reporter", "report_decode_stats"),
        "division by zero",
    ),
    Mutation("count again when one has finished", CHAIN, stock("req_to_token_pool", "free"), MISCOUNTED),
    # PLAIN -> SPECULATIVE
    Mutation(
        "check the room before a return",
        CHAIN,
        method("_has_room_to_return", lambda batch: True),
        RETRACTED,
        play_crowd,
    ),
    *(Mutation("count the pending token once", mode, the_tail_is_counted_wrongly, ANYTHING) for mode in (CHAIN, NGRAM)),
    Mutation("fill cached prefixes", LM, method("_note_prefix_gaps", nothing), DRAFT, play_conversation),
    Mutation("tell cached slots apart", LM, on_engine("_unseen", "note", nothing), DRAFT, play_conversation),
]

if Version("0.5.22") > RELEASE:
    # later releases drop finished requests at the start of every turn, and relay and log what earlier ones cannot
    MUTATIONS += [Mutation("drop finished requests", CHAIN, method("_drop_finished", nothing), ANYTHING, play_unequal)]
    MUTATIONS += [
        Mutation(
            "clear batch_is_full",
            mode,
            method("_drop_finished", lambda batch: batch.filter_batch()),
            STUCK,
            play_twins,
        )
        for mode in (CHAIN, NGRAM)
    ]
    MUTATIONS += [
        Mutation("relay token ids alone", CHAIN, stock("future_map", "stash"), ANYTHING),
        Mutation(
            "keep the return out of the prefill log", CHAIN, stock("metrics_reporter", "report_prefill_stats"), ANYTHING
        ),
    ]


@pytest.fixture
def hooks() -> Iterator[InstanceHooks]:
    made = InstanceHooks()
    yield made
    made.remove_all()


@pytest.mark.parametrize(
    ("mode", "page_size", "play"),
    dict.fromkeys((mutation.mode, mutation.page_size, mutation.play) for mutation in MUTATIONS),
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_the_play_passes_when_nothing_is_left_out(
    mode: str, page_size: int, play: Play, plain: dict[str, Output]
) -> None:
    with open_switched(mode, overlap=True, page_size=page_size, **PLAYS[play]) as server:
        play(server, plain)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_leaving_a_step_out_is_noticed(mutation: Mutation, plain: dict[str, Output], hooks: InstanceHooks) -> None:
    options = PLAYS[mutation.play]
    with open_switched(mutation.mode, overlap=True, page_size=mutation.page_size, **options) as server:
        mutation.leave_out(server, hooks)
        with pytest.raises(Exception, match=mutation.noticed or None) as noticed:
            mutation.play(server, plain)
        print(f"{mutation}: {type(noticed.value).__name__}: {noticed.value}")
