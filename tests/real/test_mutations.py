"""Leave out one step of a transition, and the ordinary checks of the other tests must notice.

Each mutation takes one step out of a live engine; the same play without it passes
(``test_the_play_passes_when_nothing_is_left_out``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pytest
from switching import (
    Request,
    Scenario,
    assert_same_answers,
    every,
    open_switched,
    plain_answers,
    run,
    workload,
)

from specswitch.cpu_engine.inprocess import InProcessScheduler, Output
from specswitch.cpu_engine.releases import installed_release
from specswitch.engine.hooks import InstanceHooks
from specswitch.signals import Mode

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        installed_release().version != "0.5.12.post1", reason="the steps are those of the engines for SGLang 0.5.12"
    ),
]

VOCAB_SIZE = 250

LeaveOut = Callable[[InProcessScheduler, InstanceHooks], None]


# Plays: what is served while a step is missing


def arrivals() -> list[Request]:
    """Five requests: two at the start, one in each mode."""
    modes = [None, None, *Mode]
    requests = workload(seed=11, count=5, vocab_size=VOCAB_SIZE, max_new_tokens=40, prefix="arrival-")
    return [replace(request, mode=mode, turn=0) for request, mode in zip(requests, modes, strict=True)]


def twins() -> list[Request]:
    """Two requests that finish in the same step, and one that waits for them."""
    return [Request(f"twin-{index}", [1, 20, 30], 12) for index in range(3)]


def unequal() -> list[Request]:
    """Requests of which one finishes long before the others, and they not in the same step."""
    return [Request(f"unequal-{index}", [1, 20 + index, 30], new) for index, new in enumerate((10, 30, 35, 40))]


def crowd() -> list[Request]:
    """More than the pool holds; SGLang 0.5.13 and later admit them only if they may end early."""
    requests = workload(seed=2, count=6, vocab_size=VOCAB_SIZE, max_new_tokens=56, prefix="crowd-")
    return [replace(request, turn=0, options={"ignore_eos": False}) for request in requests]


def first_turn() -> list[Request]:
    return [Request("first-turn", [1, *range(40, 60)], 24)]


def second_turn(first: Output) -> list[Request]:
    """Goes on from what the first turn was answered, as a conversation does."""
    return [Request("second-turn", [1, *range(40, 60), *first.output_ids, 70, 71], 24)]


@pytest.fixture(scope="module")
def plain() -> dict[str, Output]:
    answers = plain_answers([*arrivals(), *twins(), *unequal(), *crowd(), *first_turn()])
    return answers | plain_answers(second_turn(answers["first-turn"]))


def play_arrivals(server: InProcessScheduler, plain: dict[str, Output]) -> None:
    stays = itertools.cycle((0, 1))
    retract_in = frozenset({Mode.PLAIN})
    outcome = run(server, Scenario(arrivals(), every(5), lambda: next(stays), retract_in=retract_in))
    assert_same_answers(outcome, plain)
    assert outcome.switches >= 4


def play_twins(server: InProcessScheduler, plain: dict[str, Output]) -> None:
    """PLAIN is entered in the very turn in which all running requests have finished, and another one waits."""
    left = False

    def once_all_have_finished(turn: int, mode: Mode) -> Mode:
        nonlocal left
        running = server.scheduler.running_batch.reqs
        left = left or (len(running) == 2 and all(req.finished() for req in running))
        return Mode.PLAIN if left else Mode.SPECULATIVE

    outcome = run(server, Scenario(twins(), once_all_have_finished, max_turns=200))
    assert_same_answers(outcome, plain)
    assert outcome.switches == 1


def play_unequal(server: InProcessScheduler, plain: dict[str, Output]) -> None:
    """PLAIN is entered in the turn in which a request has finished, the return puts out another one's last token."""
    one_has_finished = one_is_about_to = False

    def wish(turn: int, mode: Mode) -> Mode:
        nonlocal one_has_finished, one_is_about_to
        scheduler = server.scheduler
        running = scheduler.running_batch.reqs
        one_has_finished = one_has_finished or any(req.finished() for req in running)
        if mode is Mode.PLAIN:
            in_flight = len(getattr(scheduler, "result_queue", ()))
            to_go = [req.sampling_params.max_new_tokens - len(req.output_ids) - in_flight for req in running]
            one_is_about_to = one_is_about_to or 1 in to_go
        return Mode.PLAIN if one_has_finished and not one_is_about_to else Mode.SPECULATIVE

    outcome = run(server, Scenario(unequal(), wish))
    assert_same_answers(outcome, plain)
    assert outcome.switches == 2


def play_crowd(server: InProcessScheduler, plain: dict[str, Output]) -> None:
    """SPECULATIVE is wished for when the pool has a few slots left for each request, but not enough to speculate."""
    crowded = False

    def once_crowded(turn: int, mode: Mode) -> Mode:
        nonlocal crowded
        running = len(server.scheduler.running_batch.reqs)
        crowded = crowded or (running > 2 and server.free_slots() < 3 * running)
        return Mode.SPECULATIVE if crowded else Mode.PLAIN

    outcome = run(server, Scenario(crowd(), once_crowded))
    assert_same_answers(outcome, plain)
    assert outcome.switches == 2
    assert outcome.pressed_in[Mode.PLAIN]


def play_conversation(server: InProcessScheduler, plain: dict[str, Output]) -> None:
    """A prefix that was decoded while PLAIN is reused while SPECULATIVE."""
    outcome = run(server, Scenario(first_turn(), lambda turn, mode: Mode.PLAIN))
    outcome = run(server, Scenario(second_turn(outcome.outputs["first-turn"]), lambda turn, mode: Mode.SPECULATIVE))
    assert_same_answers(outcome, plain)
    assert outcome.switches == 1


Play = Callable[[InProcessScheduler, dict[str, Output]], None]
OPTIONS: dict[Play, dict[str, Any]] = {
    play_arrivals: {"decode_log_interval": 2},
    play_twins: {"max_running_requests": 2},
    play_unequal: {},
    play_crowd: {"max_total_tokens": 320, "schedule_conservativeness": 0.05},
    play_conversation: {},
}


# Ways to leave a step out


def method(name: str, instead: Callable[..., Any]) -> LeaveOut:
    """A method of the engine does this instead."""

    def leave_out(server: InProcessScheduler, hooks: InstanceHooks) -> None:
        engine = server.scheduler.specswitch.engine
        assert callable(getattr(engine, name))
        hooks.replace(engine, name, instead)

    return leave_out


def function(name: str, instead: Callable[..., Any]) -> LeaveOut:
    """A function that the engine's module calls does this instead."""

    def leave_out(server: InProcessScheduler, hooks: InstanceHooks) -> None:
        from specswitch.engine import line_0_5_12

        assert callable(getattr(line_0_5_12, name))
        hooks.replace(line_0_5_12, name, instead)

    return leave_out


def stock(owner: str, name: str) -> LeaveOut:
    """SGLang's own method runs, without the engine's hook."""

    def leave_out(server: InProcessScheduler, hooks: InstanceHooks) -> None:
        hooked = getattr(server.scheduler, owner) if owner else server.scheduler
        hooks.replace(hooked, name, getattr(type(hooked), name).__get__(hooked))

    return leave_out


def entering_plain_keeps(*fields: str) -> LeaveOut:
    """Entering PLAIN leaves these fields of the batch as they were."""

    def leave_out(server: InProcessScheduler, hooks: InstanceHooks) -> None:
        def enter_plain(original: Callable[[], Any]) -> Any:
            batch = server.scheduler.running_batch
            before = {name: getattr(batch, name) for name in fields}
            entry = original()
            for name, value in before.items():
                setattr(batch, name, value)
            return entry

        hooks.around(server.scheduler.specswitch.engine, "enter_plain", enter_plain)

    return leave_out


def after_catch_up(undo: Callable[[Any, Any], None]) -> LeaveOut:
    """Undo something, given batch and result, once the catch-up was launched."""

    def leave_out(server: InProcessScheduler, hooks: InstanceHooks) -> None:
        def run_batch(original: Callable[..., Any], batch: Any, *args: Any) -> Any:
            result = original(batch, *args)
            if hasattr(result, "specswitch_catch_up"):
                undo(batch, result)
            return result

        hooks.around(server.scheduler, "run_batch", run_batch)

    return leave_out


def stay_an_extend(batch: Any, result: Any) -> None:
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    batch.forward_mode = ForwardMode.EXTEND


def nothing(*args: Any, **kwargs: Any) -> None:
    return None


def launches_speculatively(server: InProcessScheduler, hooks: InstanceHooks) -> None:
    """A plain batch finds the scheduler as it is for a speculative one."""
    hooks.replace(server.scheduler.specswitch.engine, "_plain_launch", NotPlain())


class NotPlain(nullcontext[None]):
    active = False


# What must notice

TOKENS = r"differs from the plain server's at token"
LEAK = r"Mem Leak Detected|KV slots are lost"
MISCOUNTED = r"the census has missed"
DRAFT = r"the draft has not seen tokens"
STUCK = r"stuck in"
ANYTHING = ""
"""Whatever SGLang raises, or whichever check comes first."""
RETRACTED = r"the return to SPECULATIVE retracted requests"


@dataclass(frozen=True)
class Mutation:
    step: str
    mode: str
    leave_out: LeaveOut
    noticed: str
    """What the check that fails says (a regular expression)."""
    play: Play = play_arrivals
    page_size: int = 1

    def __str__(self) -> str:
        return f"{self.step}-{self.mode}-page{self.page_size}".replace(" ", "_")


V1, V1_TREE, V2 = "eagle-topk1-v1", "eagle-topk4-v1", "eagle-v2"

MUTATIONS = [
    # SPECULATIVE -> PLAIN
    Mutation("give reserved slots back", V2, method("_reserved_slots", lambda reqs: (None, 0)), LEAK),
    Mutation("give reserved slots back", V2, method("_reserved_slots", lambda reqs: (None, 0)), LEAK, page_size=16),
    Mutation("wait for the result in flight", V2, method("_decode_in_flight", lambda: False), ANYTHING),
    Mutation("rebuild seq_lens", V2, entering_plain_keeps("seq_lens"), ANYTHING),
    Mutation("rebuild seq_lens_cpu", V2, entering_plain_keeps("seq_lens_cpu"), ANYTHING),
    Mutation("rebuild seq_lens_sum", V2, entering_plain_keeps("seq_lens_sum"), ANYTHING),
    *(Mutation("stash the last token", mode, entering_plain_keeps("output_ids"), ANYTHING) for mode in (V1_TREE, V2)),
    Mutation("drop spec_info", V2, entering_plain_keeps("spec_info"), ANYTHING),
    *(
        Mutation("filter finished requests", mode, method("_drop_finished", nothing), ANYTHING, play_unequal)
        for mode in (V1, V2)
    ),
    *(
        Mutation(
            "clear batch_is_full",
            mode,
            method("_drop_finished", lambda batch: batch.filter_batch()),
            STUCK,
            play_twins,
        )
        for mode in (V1, V2, "ngram")
    ),
    *(Mutation("note where the draft stops", mode, function("open_gap", nothing), DRAFT) for mode in (V1_TREE, V2)),
    # PLAIN
    *(
        Mutation("swap the worker", mode, launches_speculatively, ANYTHING)
        for mode in (V1_TREE, V2, "standalone-v1", "ngram")
    ),
    *(
        Mutation("keep prefilled batches plain", mode, method("_keep_plain_form", nothing), ANYTHING)
        for mode in (V1, V2, "ngram")
    ),
    *(
        Mutation("count again when one has finished", mode, stock("req_to_token_pool", "free"), MISCOUNTED)
        for mode in (V1, V2)
    ),
    Mutation("relay tokens to the next step", V2, stock("future_map", "store_to_map"), ANYTHING),
    Mutation("resolve relayed tokens", V2, stock("future_map", "resolve_future"), ANYTHING),
    *(
        Mutation("keep the log line from dividing by zero", mode, stock("", "report_decode_stats"), "division by zero")
        for mode in (V1, V2)
    ),
    # PLAIN -> SPECULATIVE
    *(
        Mutation(
            "check the room before a return",
            mode,
            method("_has_room_to_return", lambda batch: True),
            RETRACTED,
            play_crowd,
        )
        for mode in (V1, V2)
    ),
    Mutation("wait for the result in flight on return", V2, method("_result_in_flight", lambda: False), ANYTHING),
    *(
        Mutation("be a decode batch after the catch-up", mode, after_catch_up(stay_an_extend), ANYTHING)
        for mode in (V1, V2)
    ),
    *(
        Mutation(
            "process the catch-up as a plain step",
            mode,
            after_catch_up(lambda batch, result: delattr(result, "specswitch_catch_up")),
            ANYTHING,
        )
        for mode in (V1, V2)
    ),
    *(
        Mutation(
            "filter the draft input after the catch-up",
            mode,
            method("_after_catch_up", nothing),
            ANYTHING,
            play_unequal,
        )
        for mode in (V1, V1_TREE)
    ),
    *(
        Mutation("fill cached prefixes", mode, method("_note_prefix_gaps", nothing), DRAFT, play_conversation)
        for mode in (V1, V2)
    ),
    *(
        Mutation("tell cached slots apart", mode, method("_going_in", nothing), DRAFT, play_conversation)
        for mode in (V1, V2)
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
    with open_switched(mode, page_size=page_size, **OPTIONS[play]) as server:
        play(server, plain)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_leaving_a_step_out_is_noticed(mutation: Mutation, plain: dict[str, Output], hooks: InstanceHooks) -> None:
    with open_switched(mutation.mode, page_size=mutation.page_size, **OPTIONS[mutation.play]) as server:
        mutation.leave_out(server, hooks)
        with pytest.raises(Exception, match=mutation.noticed or None) as noticed:
            mutation.play(server, plain)
        print(f"{mutation}: {type(noticed.value).__name__}: {noticed.value}")
