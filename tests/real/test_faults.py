"""A fault inside specswitch, wherever it strikes, ends the switching and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from cases import Case, typical_cases
from switching import Request, Scenario, assert_same_answers, every, open_switched, plain_answers, run, workload

from specswitch.cpu_engine.inprocess import InProcessScheduler, Output
from specswitch.engine.hooks import InstanceHooks

pytestmark = pytest.mark.real


class StruckError(Exception):
    """Raised on purpose."""


def engines() -> list[Case]:
    """A server for each engine and event loop of the release."""
    return [case for case in typical_cases() if case.mode in ("eagle-topk1-v1", "eagle-v2", "eagle-topk1")]


def requests() -> list[Request]:
    made = workload(seed=41, count=6, vocab_size=250, max_new_tokens=40, prefix="served-")
    return [replace(request, turn=3 * index) for index, request in enumerate(made)]


@pytest.fixture(scope="module")
def plain() -> dict[str, Output]:
    return plain_answers(requests())


PLACES = [
    # Scheduler.get_next_batch_to_run
    "switch.policy",
    "switch._observer.transition",
    "engine.sample",
    "engine.start_drain",
    "engine.drained",
    "engine.enter_plain",
    "engine.request_return",
    "engine._before_plain_turn",
    "engine._note_prefilled",
    "engine._note_prefix_gaps",
    # Scheduler.update_running_batch
    "engine._has_room_to_return",
    "engine._result_in_flight",
    "engine._in_flight",
    "engine._rebuild_penalties",
    "engine._note_caught_up",
    # Scheduler.process_batch_result
    "engine._count_step",
    # the prefix cache
    "engine._unseen.note",
]
"""What the hooks call; an engine has some of them."""


def strike(place: str, server: InProcessScheduler, hooks: InstanceHooks, nth: int) -> list[str]:
    """Let the ``nth`` call of that function raise; gives a list that tells when it did.  Skips where it is absent."""
    owner: Any = server.scheduler.specswitch
    first, *path, name = place.split(".")
    for step in ([] if first == "switch" else [first]) + path:
        owner = getattr(owner, step, None)
    if not hasattr(owner, name):
        pytest.skip(f"this engine has no {name}")
    struck: list[str] = []
    left = nth

    def raising(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            struck.append(place)
            raise StruckError(place)
        return original(*args, **kwargs)

    hooks.around(owner, name, raising)
    return struck


@pytest.fixture
def hooks() -> Iterator[InstanceHooks]:
    made = InstanceHooks()
    yield made
    made.remove_all()


@pytest.mark.parametrize("case", engines(), ids=str)
@pytest.mark.parametrize("place", PLACES)
def test_every_request_is_answered(
    place: str, case: Case, plain: dict[str, Output], hooks: InstanceHooks, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_switched(**case.options, flags=["--specswitch-log-format", "json"]) as server:
        struck = strike(place, server, hooks, nth=2)
        outcome = run(server, Scenario(requests(), every(6), may_fault=True))
        told = [line for line in capsys.readouterr().err.splitlines() if "specswitch.fault" in line]
        later = [replace(request, rid=f"later-{request.rid}") for request in requests()]
        afterwards = run(server, Scenario(later, every(6), may_fault=True))
    assert_same_answers(outcome, plain)
    assert_same_answers(afterwards, {f"later-{rid}": output for rid, output in plain.items()})
    if not struck:
        pytest.skip("not called twice here")
    assert len(told) == 1
    assert place in json.loads(told[0])["error"]
    assert place in afterwards.status["fault"]
    assert afterwards.switches <= 1, "a drain or a return that was under way may still complete"
