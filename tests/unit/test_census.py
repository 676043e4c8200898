"""How many requests the next decode batch would hold: right in every turn, and walked for only when they change."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from specswitch.engine.census import Census
from specswitch.engine.hooks import InstanceHooks


class Request:
    """``Req``: whether it has finished, and what its sampling uses."""

    def __init__(self, **params: Any) -> None:
        self.origin_input_ids, self.output_ids = [1, 2, 3], [4]
        self.is_finished = self.return_logprob = self.return_hidden_states = False
        self.grammar = None
        plain = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "min_new_tokens": 0}
        self.sampling_params = SimpleNamespace(**plain | {"logit_bias": None, "min_p": 0.0} | params)

    def finished(self) -> bool:
        return self.is_finished


class Requests(list[Any]):
    """The list of a running batch, which may be walked ``walks`` times."""

    walks = 1

    def __iter__(self) -> Iterator[Any]:
        assert self.walks, "the requests were walked again"
        self.walks -= 1
        return super().__iter__()


class Pool:
    def __init__(self) -> None:
        self.freed: list[Any] = []

    def free(self, req: Any) -> None:
        self.freed.append(req)


def batch(reqs: list[Any], extend: bool = False) -> Any:
    return SimpleNamespace(reqs=reqs, forward_mode=SimpleNamespace(is_extend=lambda: extend))


@pytest.fixture
def scheduler() -> Any:
    running = batch(Requests([Request(), Request(), Request()]))
    return SimpleNamespace(running_batch=running, last_batch=running, chunked_req=None, req_to_token_pool=Pool())


def census_of(scheduler: Any, *watched: str) -> Census:
    census = Census(scheduler, frozenset(watched))
    census.attach(InstanceHooks())
    return census


def size(census: Census) -> int:
    census.take()
    return census.size


def test_requests_that_stay_are_walked_once(scheduler: Any) -> None:
    census = census_of(scheduler, "min_p")
    assert [size(census) for _ in range(3)] == [3, 3, 3]


def test_a_request_that_finishes_is_missed_in_the_next_turn(scheduler: Any) -> None:
    census, reqs = census_of(scheduler), scheduler.running_batch.reqs
    reqs.walks = 2
    assert size(census) == 3
    reqs[1].is_finished = True
    scheduler.req_to_token_pool.free(reqs[1])
    assert [size(census) for _ in range(2)] == [2, 2]
    assert scheduler.req_to_token_pool.freed == [reqs[1]]


def test_requests_that_join_and_leave_are_counted(scheduler: Any) -> None:
    census, running = census_of(scheduler), scheduler.running_batch
    running.reqs.walks = 2
    assert size(census) == 3
    running.reqs.append(Request())  # ScheduleBatch.merge_batch
    assert size(census) == 4
    running.reqs = Requests(list.__getitem__(running.reqs, slice(2)))  # ScheduleBatch.filter_batch
    assert size(census) == 2


def test_what_the_last_prefill_finished_counts_and_a_chunked_request_does_not(scheduler: Any) -> None:
    census, finished = census_of(scheduler), Request()
    finished.is_finished = True
    scheduler.running_batch.reqs.walks = 2
    scheduler.chunked_req = Request()
    scheduler.last_batch = batch([Request(), finished, scheduler.chunked_req], extend=True)
    assert size(census) == 4
    assert len(census.just_prefilled()) == 2
    scheduler.last_batch = None
    assert size(census) == 3


def test_features_follow_who_runs(scheduler: Any) -> None:
    census, running = census_of(scheduler, "min_p"), scheduler.running_batch
    running.reqs = [Request(min_p=0.1, presence_penalty=0.5), Request()]
    census.take()
    assert census.features == {"min_p"}
    running.reqs[0].is_finished = True
    scheduler.req_to_token_pool.free(running.reqs[0])
    census.take()
    assert census.features == frozenset()


def test_context_is_counted_with_the_requests_and_grows_by_what_steps_put_out(scheduler: Any) -> None:
    census, reqs = census_of(scheduler), scheduler.running_batch.reqs
    reqs.walks = 2
    census.take()
    assert census.context_tokens == 12
    census.context_tokens += 7
    census.take()
    assert census.context_tokens == 19
    reqs[0].output_ids = [5] * 8
    reqs[1].is_finished = True
    scheduler.req_to_token_pool.free(reqs[1])
    census.take()
    assert census.context_tokens == 15
