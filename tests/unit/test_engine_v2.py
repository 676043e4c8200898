"""The engine for SGLang 0.5.13 and later on a scheduler and workers that do what they are told."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import sglang_stand_in as stand_in
import torch
from pytest_mock import MockerFixture
from sglang_stand_in import Algorithm, Batch, Forward, Request, Scheduler

from specswitch.config import SwitchConfig
from specswitch.engine.base import PlainEntry, SpeculativeEntry
from specswitch.engine.draft_gap import gap_of, set_gap
from specswitch.engine.reentry import FIRST_STEPS, ReentryRecord
from specswitch.signals import Mode


@pytest.fixture(autouse=True)
def _sglang(mocker: MockerFixture) -> Iterator[None]:
    mocker.patch.dict(sys.modules, stand_in.modules())
    stand_in.forget_engine()
    yield
    stand_in.forget_engine()


@pytest.fixture
def listener() -> MagicMock:
    made = MagicMock()
    made.status.return_value = {"mode": "PLAIN"}
    return made


def requests(*lengths: tuple[int, int], reserve: int = 0) -> list[Request]:
    """Requests with prompts and outputs of these lengths, and this many slots allocated ahead."""
    made = []
    for row, (prompt, output) in enumerate(lengths):
        allocated = prompt + output - 1 + reserve
        made.append(Request(f"r{row}", list(range(prompt)), list(range(50, 50 + output)), row, allocated))
    return made


def attach(scheduler: Scheduler, listener: Any, *, max_pause_ms: int = 1000) -> Any:
    v2 = importlib.import_module("specswitch.engine.v2")
    scheduler.metrics_reporter.scheduler = scheduler
    forward = v2.PlainForward("plain graphs", "plain backend")
    engine = v2.V2Engine(scheduler, "0.5.23", forward, SwitchConfig(max_pause_ms=max_pause_ms))
    engine.attach(listener)
    return engine


# SPECULATIVE


def test_until_asked_the_scheduler_behaves_as_without_hooks(listener: MagicMock) -> None:
    scheduler = Scheduler(requests((5, 3)))
    attach(scheduler, listener)
    batch = scheduler.turn()
    assert batch is scheduler.running_batch
    assert scheduler.seen["prepared as"] is Algorithm.EAGLE
    assert scheduler.run_batch(batch) == "result"
    assert scheduler.seen["worker"] is scheduler.draft_worker
    assert scheduler.seen["algorithm"] == (Algorithm.EAGLE, Algorithm.EAGLE)
    scheduler.future_map.stash(torch.tensor([0]), "draft input")
    assert scheduler.future_map.stashed == ["draft input"]
    listener.on_turn.assert_called_once_with()


def test_released_hooks_leave_nothing_behind(listener: MagicMock) -> None:
    scheduler = Scheduler(requests((5, 3)))
    owners = (scheduler, scheduler.future_map, scheduler.metrics_reporter, scheduler.tree_cache)
    before = [set(vars(owner)) for owner in owners]
    dispatched = dict(scheduler._request_dispatcher._mapping)
    engine = attach(scheduler, listener)
    engine.release()
    assert [set(vars(owner)) - {"seen"} for owner in owners] == [names - {"seen"} for names in before]
    assert scheduler._request_dispatcher._mapping == dispatched


def test_a_verify_step_is_counted_with_its_tokens(listener: MagicMock) -> None:
    scheduler = Scheduler(requests((5, 3), (4, 2)))
    engine = attach(scheduler, listener)
    scheduler.process_batch_result(scheduler.running_batch, SimpleNamespace(num_correct_drafts=3))
    listener.on_decode_step.assert_called_once_with(Mode.SPECULATIVE)
    assert engine.sample(Mode.SPECULATIVE, 1, 1).accept_length == 2.5


def test_a_sample_counts_unfinished_and_just_prefilled_requests(listener: MagicMock) -> None:
    running, finished, prefilled, chunked = requests((5, 3), (5, 3), (6, 1), (7, 1))
    finished.is_finished = True
    scheduler = Scheduler([running, finished])
    scheduler.last_batch = Batch([prefilled, chunked], forward_mode=Forward.EXTEND)
    scheduler.chunked_req = chunked
    scheduler.waiting_queue = ["one", "two", "three"]
    sample = attach(scheduler, listener).sample(Mode.SPECULATIVE, 4, 2)
    assert (sample.decode_batch_size, sample.queue_length, sample.decode_step) == (2, 3, 4)
    assert sample.accept_length is None


# DRAINING


def test_draining_launches_nothing_and_loses_nobody(listener: MagicMock) -> None:
    scheduler = Scheduler(requests((5, 3)))
    engine = attach(scheduler, listener)
    held = scheduler.running_batch
    engine.start_drain()
    assert scheduler.turn() is None
    assert scheduler.running_batch is held
    assert "prepared as" not in scheduler.seen
    engine.cancel_drain()
    assert scheduler.turn() is held


def test_drained_means_that_no_result_is_in_flight(listener: MagicMock) -> None:
    scheduler = Scheduler(requests((5, 3)))
    engine = attach(scheduler, listener)
    scheduler.result_queue.append("result")
    assert not engine.drained()
    with pytest.raises(RuntimeError, match="in flight"):
        engine.enter_plain()
    scheduler.result_queue.clear()
    assert engine.drained()


def test_without_overlap_nothing_is_ever_in_flight(listener: MagicMock) -> None:
    scheduler = Scheduler(requests((5, 3)), overlap=False)
    del scheduler.result_queue
    assert attach(scheduler, listener).drained()


# Into PLAIN


def test_entering_plain_rebuilds_the_batch(listener: MagicMock) -> None:
    scheduler = Scheduler(requests((5, 3), (4, 2), reserve=6))
    engine = attach(scheduler, listener)
    batch, allocator = scheduler.running_batch, scheduler.token_to_kv_pool_allocator
    assert engine.enter_plain() == PlainEntry(requests=2, slots_given_back=12)

    (freed,), kwargs = allocator.free_segment.call_args
    assert freed.tolist() == [*range(7, 13), *range(64 + 5, 64 + 11)]
    assert kwargs == {"start_pos": 0}
    assert [req.kv.kv_allocated_len for req in batch.reqs] == [7, 5]
    assert (batch.spec_algorithm, batch.spec_info) == (Algorithm.NONE, None)
    assert batch.seq_lens.tolist() == batch.seq_lens_cpu.tolist() == batch.orig_seq_lens.tolist() == [7, 5]
    assert (batch.seq_lens.dtype, batch.orig_seq_lens.dtype) == (torch.int64, torch.int32)
    assert batch.seq_lens_sum == 12
    assert batch.input_ids is None
    assert batch.out_cache_loc is None
    assert scheduler.future_map.output_tokens_buf.tolist() == [52, 51]
    assert [gap_of(req) for req in batch.reqs] == [7, 5]


def test_whole_pages_go_back_and_no_more(listener: MagicMock) -> None:
    scheduler = Scheduler(requests((5, 3), (20, 1)), page_size=16)
    for req in scheduler.running_batch.reqs:
        req.kv.kv_allocated_len = 48
    entry = attach(scheduler, listener).enter_plain()
    (freed,), _ = scheduler.token_to_kv_pool_allocator.free_segment.call_args
    assert freed.tolist() == [*range(16, 48), *range(64 + 32, 64 + 48)]
    assert entry.slots_given_back == 48


def test_finished_requests_are_left_alone_and_admission_opens(listener: MagicMock) -> None:
    running, finished = requests((5, 3), (5, 3))
    finished.is_finished, finished.kv.req_pool_idx = True, None
    scheduler = Scheduler([running])
    scheduler.running_batch.reqs.append(finished)
    scheduler.running_batch.batch_is_full = True
    assert attach(scheduler, listener).enter_plain().requests == 1
    assert scheduler.running_batch.reqs == [running]
    assert not scheduler.running_batch.batch_is_full


def test_an_unsettled_request_stops_the_change_before_it_begins(listener: MagicMock) -> None:
    scheduler = Scheduler(requests((5, 3), (4, 2), reserve=6))
    engine = attach(scheduler, listener)
    batch = scheduler.running_batch
    batch.reqs[1].kv.kv_committed_len += 1
    with pytest.raises(RuntimeError, match="r1 has KV for 6 tokens where 5"):
        engine.enter_plain()
    assert batch.spec_algorithm is Algorithm.EAGLE
    assert batch.input_ids == "ids"
    scheduler.token_to_kv_pool_allocator.free_segment.assert_not_called()
    assert [req.kv.kv_allocated_len for req in batch.reqs] == [13, 11]
    assert scheduler.turn() is batch


def test_plain_decode_finds_the_token_of_a_just_prefilled_request(listener: MagicMock) -> None:
    running, prefilled = requests((5, 3), (6, 1))
    scheduler = Scheduler([running], overlap=False)
    scheduler.future_map.output_tokens_buf = torch.full((2,), -1)
    scheduler.req_to_token_pool.req_to_token = torch.zeros((2, 64), dtype=torch.int32)
    scheduler.last_batch = Batch([prefilled], forward_mode=Forward.EXTEND, spec_info="draft input")
    attach(scheduler, listener).enter_plain()
    assert scheduler.future_map.output_tokens_buf.tolist() == [52, 50]
    assert gap_of(prefilled) == 6


# PLAIN


def plain(scheduler: Scheduler, listener: MagicMock, **options: Any) -> Any:
    engine = attach(scheduler, listener, **options)
    engine.enter_plain()
    return engine


def test_a_plain_batch_goes_the_way_of_a_server_without_speculation(listener: MagicMock) -> None:
    scheduler = Scheduler(requests((5, 3)))
    plain(scheduler, listener)
    scheduler.run_batch(scheduler.turn())
    assert scheduler.seen["prepared as"] is Algorithm.NONE
    assert scheduler.seen["worker"] is scheduler.tp_worker
    assert scheduler.seen["algorithm"] == (Algorithm.NONE, Algorithm.NONE)
    assert scheduler.seen["enable_spec"] is False
    assert scheduler.seen["graphs"] == ("plain graphs", "plain backend", Algorithm.NONE)


@pytest.mark.parametrize("overlap", [True, False])
def test_penalties_added_up_for_verification_do_not_reach_a_plain_step(overlap: bool, listener: MagicMock) -> None:
    scheduler = Scheduler(requests((5, 3)), overlap=overlap)
    plain(scheduler, listener)
    batch = scheduler.turn()
    scheduler.run_batch(batch)
    # under overlap SGLang adds them up anew for every forward
    assert (batch.sampling_info.acc_additive_penalties is None) is not overlap
    assert (batch.sampling_info.acc_scaling_penalties is None) is not overlap


def assert_speculative_again(scheduler: Scheduler) -> None:
    assert scheduler.model_worker is scheduler.draft_worker
    assert (scheduler.spec_algorithm, scheduler.future_map.spec_algo) == (Algorithm.EAGLE, Algorithm.EAGLE)
    assert scheduler.tp_worker.enable_spec is True
    assert scheduler.tp_worker.model_runner.decode_cuda_graph_runner == "v"


def test_what_a_plain_launch_changes_is_put_back_even_if_it_fails(listener: MagicMock, mocker: MockerFixture) -> None:
    scheduler = Scheduler(requests((5, 3)))
    mocker.patch.object(Scheduler, "run_batch", side_effect=RuntimeError("out of memory"))
    plain(scheduler, listener)
    with pytest.raises(RuntimeError, match="out of memory"):
        scheduler.run_batch(scheduler.turn())
    assert_speculative_again(scheduler)


def test_late_sampling_goes_the_plain_way_too(listener: MagicMock) -> None:
    scheduler = Scheduler(requests((5, 3)))
    plain(scheduler, listener)
    scheduler.launch_batch_sample_if_needed(SimpleNamespace(delay_sample_func=print), scheduler.running_batch)
    assert scheduler.seen["sampled by"] is scheduler.tp_worker
    scheduler.launch_batch_sample_if_needed(SimpleNamespace(delay_sample_func=None), scheduler.running_batch)
    assert scheduler.seen["sampled by"] is scheduler.draft_worker


def test_a_plain_launch_relays_token_ids_alone(listener: MagicMock, mocker: MockerFixture) -> None:
    scheduler = Scheduler(requests((5, 3)))
    rows = torch.tensor([0])

    def run_batch(self: Scheduler, batch: Batch) -> None:
        self.future_map.stash(rows, SimpleNamespace(bonus_tokens=torch.tensor([77], dtype=torch.int32)))

    mocker.patch.object(Scheduler, "run_batch", run_batch)
    plain(scheduler, listener)
    scheduler.run_batch(scheduler.turn())
    assert scheduler.future_map.output_tokens_buf.tolist() == [77]
    assert scheduler.future_map.stashed == []


def test_a_prefill_while_plain_is_speculative_and_leaves_its_token(listener: MagicMock) -> None:
    running, arriving = requests((5, 3), (6, 0))
    scheduler = Scheduler([running])
    scheduler.future_map.output_tokens_buf = torch.full((2,), -1)
    plain(scheduler, listener)
    arriving.extend_end = 6
    spec_info = SimpleNamespace(bonus_tokens=torch.tensor([88], dtype=torch.int32))
    prefill = Batch([arriving], forward_mode=Forward.EXTEND, spec_info=spec_info)
    prefill.req_pool_indices = torch.tensor([1])  # type: ignore[attr-defined]
    scheduler.run_batch(prefill)
    assert scheduler.seen["worker"] is scheduler.draft_worker
    assert scheduler.future_map.output_tokens_buf.tolist() == [52, 88]
    assert gap_of(arriving) == 6


def test_a_batch_prefilled_while_nobody_ran_decodes_plain(listener: MagicMock) -> None:
    scheduler = Scheduler([])
    plain(scheduler, listener)
    scheduler.running_batch = Batch(requests((6, 1)), spec_algorithm=Algorithm.EAGLE, spec_info="draft input")
    batch = scheduler.turn()
    assert (batch.spec_algorithm, batch.spec_info) == (Algorithm.NONE, None)
    assert scheduler.seen["prepared as"] is Algorithm.NONE


def test_a_plain_step_does_not_dilute_acceptance(listener: MagicMock) -> None:
    scheduler = Scheduler(requests((5, 3)))
    engine = plain(scheduler, listener)
    scheduler.process_batch_result(scheduler.turn(), SimpleNamespace(num_correct_drafts=0))
    listener.on_decode_step.assert_called_once_with(Mode.PLAIN)
    assert engine.sample(Mode.PLAIN, 1, 1).accept_length is None


@pytest.mark.parametrize(("verify_steps", "algorithm"), [(0, Algorithm.NONE), (3, Algorithm.EAGLE)])
def test_the_log_line_of_an_interval_without_verify_steps_counts_none(
    verify_steps: int, algorithm: Algorithm, listener: MagicMock
) -> None:
    scheduler = Scheduler(requests((5, 3)))
    attach(scheduler, listener)
    reporter = scheduler.metrics_reporter
    reporter.spec_num_forward_ct = verify_steps
    reporter.report_decode_stats()
    assert reporter.reported == [algorithm]
    assert scheduler.spec_algorithm is Algorithm.EAGLE


def test_the_log_of_prefills_leaves_a_returning_batch_out(listener: MagicMock) -> None:
    scheduler = Scheduler(requests((5, 3)))
    attach(scheduler, listener)
    reporter = scheduler.metrics_reporter
    reporter.report_prefill_stats(batch="batch", prefill_stats=None)
    reporter.report_prefill_stats(batch="batch", prefill_stats="stats")
    reporter.report_prefill_stats("batch", "positional")
    assert reporter.reported == ["stats", "positional"]


# Back to SPECULATIVE


def test_the_return_launches_the_batch_once_as_an_extend(listener: MagicMock) -> None:
    scheduler = Scheduler(requests((5, 3), (4, 2)))
    engine = plain(scheduler, listener)
    batch = scheduler.running_batch
    for req in batch.reqs:  # three plain steps
        req.output_ids += [60, 61, 62]
        req.kv.kv_committed_len += 3
    engine.request_return("catch-up")
    assert scheduler.turn() is batch
    assert scheduler.seen["prepared as"] is Algorithm.EAGLE
    assert batch.forward_mode is Forward.EXTEND
    assert (batch.prefix_lens, batch.extend_lens, batch.extend_num_tokens) == ([7, 5], [4, 4], 8)
    assert batch.prefill_input_ids_cpu.tolist() == [52, 60, 61, 62, 51, 60, 61, 62]
    assert batch.out_cache_loc.tolist() == [7, 8, 9, 10, 64 + 5, 64 + 6, 64 + 7, 64 + 8]
    assert batch.seq_lens.tolist() == [11, 9]
    assert set(batch.decoding_reqs) == set(batch.reqs)
    assert (batch.chunked_req, batch.prefill_stats, batch.is_prefill_only) == (None, None, False)
    assert [gap_of(req) for req in batch.reqs] == [None, None]
    assert scheduler.running_batch.is_empty(), "SGLang merges the batch back as it merges a prefill"
    listener.on_returned.assert_called_once_with(SpeculativeEntry(requests=2, tokens_caught_up=6))
    assert not engine.cancel_return()


def test_a_return_is_accounted_for(listener: MagicMock, mocker: MockerFixture) -> None:
    mocker.patch.object(importlib.import_module("specswitch.engine.draft_kv"), "_ALWAYS_WORTH", 8)
    scheduler = Scheduler(requests((5, 3), (4, 2)))
    engine = plain(scheduler, listener)
    worthy, ending = scheduler.running_batch.reqs
    for req in (worthy, ending):
        req.output_ids += [60] * 20
        req.kv.kv_committed_len += 20
    worthy.sampling_params.max_new_tokens, ending.sampling_params.max_new_tokens = 100, 24
    engine.request_return("catch-up")
    batch = scheduler.turn()
    scheduler.run_batch(batch)
    stats = engine.draft_stats
    assert (stats.tokens_caught_up, stats.tokens_skipped) == (20, 21)
    assert (stats.tokens_missed, stats.requests_not_worth_it) == (41, 1)
    assert stats.seconds_catching_up > 0

    batch.forward_mode = Forward.DECODE
    for _ in range(FIRST_STEPS):
        listener.on_reentry.assert_not_called()
        scheduler.run_batch(batch)
        scheduler.process_batch_result(batch, SimpleNamespace(num_correct_drafts=1))
    (record,) = listener.on_reentry.call_args.args
    assert record == ReentryRecord(2, 20, 21, 1, FIRST_STEPS, 1.5, None, record.longest_wait_ms)


def test_a_return_of_a_sample_leaves_everybody_else_out(listener: MagicMock) -> None:
    """One that is not worth it and one near its end included: such are most of a batch at times."""
    scheduler = Scheduler(requests((5, 3), (4, 2), (3, 2), (6, 2)))
    engine = plain(scheduler, listener)
    batch_reqs = scheduler.running_batch.reqs
    for req, more in zip(batch_reqs, (3, 9, 100, 1), strict=True):
        req.output_ids += [60] * more
        req.kv.kv_committed_len += more
    for req, most in zip(batch_reqs, (300, 300, 120, 20), strict=True):
        req.sampling_params.max_new_tokens = most
    assert engine.missed_by_each == [4, 10]
    engine.request_return("catch-up", 1)
    batch = scheduler.turn()
    assert batch.extend_lens == [4, 1, 1, 1]
    assert [gap_of(req) is None for req in batch_reqs] == [True, False, False, False]
    look = engine.sample(Mode.SPECULATIVE, 0, 0).look
    assert (look.left_out, look.sampled) == (3, 1)
    stats = engine.draft_stats
    assert (stats.requests_left_out, stats.requests_not_worth_it, stats.tokens_skipped) == (3, 0, 0)
    engine.end_look()
    assert engine.sample(Mode.SPECULATIVE, 0, 0).look is None


def test_where_all_are_in_the_sample_there_is_no_look(listener: MagicMock) -> None:
    scheduler = Scheduler(requests((5, 3), (4, 2)))
    engine = plain(scheduler, listener)
    for req in scheduler.running_batch.reqs:
        req.output_ids += [60]
        req.kv.kv_committed_len += 1
        req.sampling_params.max_new_tokens = 100
    engine.request_return("catch-up", 2)
    scheduler.turn()
    assert engine.sample(Mode.SPECULATIVE, 0, 0).look is None


def test_a_cold_return_extends_over_the_pending_tokens(listener: MagicMock) -> None:
    scheduler = Scheduler(requests((5, 3)))
    engine = plain(scheduler, listener)
    (req,) = scheduler.running_batch.reqs
    req.output_ids += [60, 61]
    req.kv.kv_committed_len += 2
    engine.request_return("cold")
    batch = scheduler.turn()
    assert (batch.prefix_lens, batch.extend_lens) == ([9], [1])
    assert gap_of(req) == 7, "what the draft has not seen stays known"
    listener.on_returned.assert_called_once_with(SpeculativeEntry(requests=1, tokens_caught_up=0))


def test_the_return_waits_for_the_result_in_flight(listener: MagicMock) -> None:
    scheduler = Scheduler(requests((5, 3)))
    engine = plain(scheduler, listener)
    held = scheduler.running_batch
    scheduler.result_queue.append("result")
    engine.request_return("catch-up")
    assert scheduler.turn() is None
    assert scheduler.running_batch is held
    listener.on_returned.assert_not_called()
    scheduler.result_queue.clear()
    assert scheduler.turn() is held
    listener.on_returned.assert_called_once()


def test_no_return_while_the_pool_has_no_room_for_the_reserve(listener: MagicMock) -> None:
    scheduler = Scheduler(requests((5, 3)))
    engine = plain(scheduler, listener)
    batch = scheduler.running_batch
    batch.needed = 500  # what is free, and each request may need a page more
    scheduler.result_queue.append("result")
    engine.request_return("catch-up")
    assert scheduler.turn() is batch, "a plain step, and no empty turn"
    assert batch.spec_algorithm is Algorithm.NONE
    listener.on_returned.assert_not_called()
    batch.needed = 499
    scheduler.result_queue.clear()
    scheduler.turn()
    listener.on_returned.assert_called_once()


def test_no_return_while_a_row_has_no_room_for_the_reserve(listener: MagicMock) -> None:
    scheduler = Scheduler(requests((5, 3)))
    engine = plain(scheduler, listener)
    batch = scheduler.running_batch
    room = scheduler.req_to_token_pool.req_to_token.shape[1] - batch.reqs[0].kv.kv_allocated_len
    batch.needed_each = room + 1
    engine.request_return("catch-up")
    scheduler.turn()
    listener.on_returned.assert_not_called()
    batch.needed_each = room
    scheduler.turn()
    listener.on_returned.assert_called_once()


def test_the_room_for_a_return_counts_who_waits_to_be_let_in(listener: MagicMock) -> None:
    scheduler = Scheduler(requests((5, 3)))
    engine = plain(scheduler, listener)
    scheduler.waiting_queue = requests((300, 0), (200, 1))
    engine.request_return("catch-up")
    assert scheduler.turn().spec_algorithm is Algorithm.NONE
    scheduler.waiting_queue.pop()
    scheduler.turn()
    listener.on_returned.assert_called_once()


def test_no_return_while_a_request_wants_hidden_states(listener: MagicMock) -> None:
    scheduler = Scheduler(requests((5, 3)))
    engine = plain(scheduler, listener)
    scheduler.running_batch.return_hidden_states = True
    engine.request_return("catch-up")
    assert scheduler.turn().spec_algorithm is Algorithm.NONE
    listener.on_returned.assert_not_called()


def test_a_return_taken_back_leaves_a_plain_batch(listener: MagicMock) -> None:
    scheduler = Scheduler(requests((5, 3)))
    engine = plain(scheduler, listener)
    engine.request_return("catch-up")
    assert engine.cancel_return()
    assert scheduler.turn().spec_algorithm is Algorithm.NONE
    listener.on_returned.assert_not_called()


def test_with_nobody_running_the_return_is_immediate_and_a_prefill_stays_speculative(listener: MagicMock) -> None:
    scheduler = Scheduler([])
    engine = plain(scheduler, listener)
    prefilled, behind_a_gap = requests((6, 1), (6, 1))
    for req, gap in ((prefilled, 6), (behind_a_gap, 4)):
        req.extend_end = 6
        set_gap(req, gap)
    scheduler.last_batch = Batch([prefilled, behind_a_gap], forward_mode=Forward.EXTEND, spec_info="draft input")
    scheduler.result_queue.append("result")
    engine.request_return("catch-up")
    scheduler.turn()
    listener.on_returned.assert_called_once_with(SpeculativeEntry(requests=0, tokens_caught_up=0))
    assert gap_of(prefilled) is None, "the draft has seen all of its prompt"
    assert gap_of(behind_a_gap) == 4, "but not a prefix that was left unwritten"
    assert (scheduler.last_batch.spec_algorithm, scheduler.last_batch.spec_info) == (Algorithm.EAGLE, "draft input")


def test_a_long_catch_up_is_written_beside_plain_steps(listener: MagicMock, mocker: MockerFixture) -> None:
    scheduler = Scheduler(requests((5, 3)))
    engine = plain(scheduler, listener, max_pause_ms=1)  # 32 tokens at a time
    (req,) = scheduler.running_batch.reqs
    req.output_ids += range(60, 100)
    req.kv.kv_committed_len += 40
    write = mocker.patch.object(engine, "write_draft_kv")
    engine.request_return("catch-up")
    assert scheduler.turn().spec_algorithm is Algorithm.NONE
    write.assert_called_once_with([(req, 7, 39)])
    assert gap_of(req) == 38, "the last of them was not written with the token that followed"
    scheduler.turn()
    listener.on_returned.assert_called_once_with(SpeculativeEntry(requests=1, tokens_caught_up=31 + 9))


# Prefixes decoded while PLAIN


def prefill_of_a_cached_prefix(scheduler: Scheduler, engine: Any, *, own: int) -> Batch:
    """A prefill of ``own`` tokens behind 10 cached ones, of which the draft has not seen the last 4."""
    req = Request("again", list(range(10 + own)), [], row=1, allocated=10 + own)
    engine._unseen.any = True
    engine._unseen._flags[scheduler.req_to_token_pool.req_to_token[1, 6:10].long()] = True
    return Batch(
        [req],
        forward_mode=Forward.EXTEND,
        req_to_token_pool=scheduler.req_to_token_pool,
        prefix_lens=[10],
        extend_lens=[own],
        extend_num_tokens=own,
        extend_logprob_start_lens=[own],
        seq_lens_cpu=torch.tensor([10 + own]),
    )


def choose(scheduler: Scheduler, batch: Batch, mocker: MockerFixture) -> None:
    """Let SGLang choose this batch in the next turn."""
    plan = SimpleNamespace(running_batch=scheduler.running_batch, batch_to_run=batch)
    mocker.patch.object(Scheduler, "get_next_batch_to_run", return_value=plan)


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_prefill_starts_where_the_draft_has_a_gap(is_plain: bool, listener: MagicMock, mocker: MockerFixture) -> None:
    scheduler = Scheduler(requests((5, 3), (5, 3)))
    prefill = Batch([])
    choose(scheduler, prefill, mocker)
    engine = plain(scheduler, listener) if is_plain else attach(scheduler, listener)
    vars(prefill).update(vars(prefill_of_a_cached_prefix(scheduler, engine, own=20)))
    scheduler.turn()
    assert (prefill.prefix_lens, prefill.extend_lens, prefill.extend_num_tokens) == ([6], [24], 24)
    assert prefill.prefill_input_ids_cpu.tolist() == list(range(6, 30))
    assert prefill.out_cache_loc.tolist() == list(range(64 + 6, 64 + 30))
    assert prefill.extend_logprob_start_lens == [24]
    assert prefill.reqs[0].extend_end == 30
    assert gap_of(prefill.reqs[0]) is None
    assert engine.draft_stats.prefix_tokens_filled == 4


def test_a_gap_that_would_make_a_prefill_too_large_is_written_before_it(
    listener: MagicMock, mocker: MockerFixture
) -> None:
    scheduler = Scheduler(requests((5, 3), (5, 3)))
    scheduler.chunked_prefill_size = 22
    prefill = Batch([])
    choose(scheduler, prefill, mocker)
    engine = attach(scheduler, listener)
    write = mocker.patch.object(engine, "write_draft_kv")
    vars(prefill).update(vars(prefill_of_a_cached_prefix(scheduler, engine, own=20)))
    scheduler.turn()
    assert prefill.prefix_lens == [10]
    write.assert_called_once_with([(prefill.reqs[0], 6, 11)])
    assert gap_of(prefill.reqs[0]) is None


def test_a_costly_gap_stays_open_while_plain(listener: MagicMock, mocker: MockerFixture) -> None:
    scheduler = Scheduler(requests((5, 3), (5, 3)))
    scheduler.chunked_prefill_size = 8192
    prefill = Batch([])
    choose(scheduler, prefill, mocker)
    engine = plain(scheduler, listener)
    vars(prefill).update(vars(prefill_of_a_cached_prefix(scheduler, engine, own=20)))
    prefill.extend_num_tokens = 1021
    scheduler.turn()
    assert prefill.prefix_lens == [10]
    assert gap_of(prefill.reqs[0]) == 6
    assert engine.draft_stats.prefix_tokens_skipped == 4


def test_slots_that_go_into_the_prefix_cache_are_told_apart(listener: MagicMock) -> None:
    scheduler = Scheduler(requests((5, 3)))
    engine = plain(scheduler, listener)
    (req,) = scheduler.running_batch.reqs
    req.output_ids += [60, 61, 62]
    scheduler.tree_cache.checkpoint(req, up_to=10)
    assert engine._unseen.any
    assert engine._unseen.gaps_in(torch.arange(10), [10]) == [7]


def test_parts_of_ranges_overlap_by_the_token_that_was_shown_alone() -> None:
    v2_batch = importlib.import_module("specswitch.engine.v2_batch")
    assert v2_batch.parts([("a", 3, 10), ("b", 0, 5), ("c", 7, 9)], 4) == [
        [("a", 3, 7)],
        [("a", 6, 10)],
        [("b", 0, 4)],
        [("b", 3, 5), ("c", 7, 9)],
    ]


# Faults


def test_a_failed_return_leaves_a_plain_batch_and_is_told_once(listener: MagicMock, mocker: MockerFixture) -> None:
    scheduler = Scheduler(requests((5, 3)))
    engine = plain(scheduler, listener)
    batch = scheduler.running_batch
    mocker.patch.object(engine, "_make_extend", side_effect=RuntimeError("no such field"))
    engine.request_return("catch-up")

    def reserve(self: Scheduler, batch: Batch) -> Batch:
        for req in batch.reqs:
            req.kv.kv_allocated_len += 0 if batch.spec_algorithm.is_none() else 6
        return batch

    mocker.patch.object(Scheduler, "update_running_batch", reserve)
    assert scheduler.turn() is batch
    ((doing, error),) = [call.args for call in listener.on_fault.call_args_list]
    assert "SPECULATIVE" in doing
    assert str(error) == "no such field"
    assert batch.spec_algorithm is Algorithm.NONE
    assert [req.kv.kv_allocated_len for req in batch.reqs] == [7], "the reserve went back"
    assert engine.cancel_return()
    listener.on_returned.assert_not_called()


def failing_once(mocker: MockerFixture, engine: Any, name: str) -> None:
    original, error = getattr(engine, name), RuntimeError(name)
    calls = iter([error])

    def step(*args: Any) -> Any:
        for failure in calls:
            raise failure
        return original(*args)

    mocker.patch.object(engine, name, step)


def test_bringing_a_prefill_into_plain_form_is_tried_again(listener: MagicMock, mocker: MockerFixture) -> None:
    scheduler = Scheduler(requests((5, 3)))
    failing_once(mocker, plain(scheduler, listener), "_bring_into_plain_form")
    scheduler.running_batch.spec_algorithm = Algorithm.EAGLE  # as a prefill leaves it while nobody ran
    scheduler.run_batch(scheduler.turn())
    assert scheduler.seen["worker"] is scheduler.tp_worker
    listener.on_fault.assert_called_once()


def test_a_batch_that_cannot_be_held_is_launched(listener: MagicMock, mocker: MockerFixture) -> None:
    scheduler = Scheduler(requests((5, 3)))
    engine = attach(scheduler, listener)
    listener.on_fault.side_effect = lambda doing, error: engine.cancel_drain()
    failing_once(mocker, engine, "_hold")
    engine.start_drain()
    assert scheduler.turn() is scheduler.running_batch
    assert scheduler.seen["prepared as"] is Algorithm.EAGLE
    listener.on_fault.assert_called_once()


def test_a_return_that_fails_at_its_very_end_is_undone(listener: MagicMock, mocker: MockerFixture) -> None:
    scheduler = Scheduler(requests((5, 3)))
    engine = plain(scheduler, listener)
    engine._processor_counts_the_tail = False  # SGLang up to 0.5.18: the engine counts the pending token
    batch = scheduler.running_batch
    failing_once(mocker, engine, "_finish_return")
    engine.request_return("catch-up")
    assert scheduler.turn() is batch
    assert (batch.spec_algorithm, batch.forward_mode) == (Algorithm.NONE, Forward.DECODE)
    assert batch.seq_lens.tolist() == [7]
    assert batch.reqs[0].kv.kv_committed_len == 7
    assert gap_of(batch.reqs[0]) == 7
    listener.on_fault.assert_called_once()
    listener.on_returned.assert_not_called()


def test_faults_of_listener_and_bookkeeping_do_not_reach_the_scheduler(
    listener: MagicMock, mocker: MockerFixture
) -> None:
    scheduler = Scheduler(requests((5, 3)))
    engine = attach(scheduler, listener)
    mocker.patch.object(engine, "_count_step", side_effect=ValueError("full disk"))
    listener.status.side_effect = ValueError("not JSON")
    scheduler.process_batch_result(scheduler.running_batch, SimpleNamespace(num_correct_drafts=1))
    assert scheduler.seen["processed"].num_correct_drafts == 1
    assert "specswitch" not in scheduler.get_internal_state(None).internal_state
    mocker.patch.object(engine._unseen, "note", side_effect=ValueError("no such slot"))
    engine._unseen.any = True
    scheduler.tree_cache.checkpoint(scheduler.running_batch.reqs[0], up_to=3)
    assert [str(call.args[1]) for call in listener.on_fault.call_args_list] == ["full disk", "not JSON", "no such slot"]


def test_the_status_is_shown_to_the_dispatcher_too(listener: MagicMock) -> None:
    scheduler = Scheduler(requests((5, 3)))
    attach(scheduler, listener)
    handler = scheduler._request_dispatcher._mapping[stand_in.InternalStateRequest]
    for reply in (scheduler.get_internal_state(None), handler(None)):
        assert reply.internal_state["startup_time"] == 1.0
        assert reply.internal_state["specswitch"]["mode"] == "PLAIN"


def test_hooks_stay_while_plain(listener: MagicMock) -> None:
    engine = plain(Scheduler(requests((5, 3))), listener)
    with pytest.raises(RuntimeError, match="speculative form"):
        engine.release()


# NGRAM


def test_ngram_has_no_draft_kv_to_bring_back(listener: MagicMock) -> None:
    scheduler = Scheduler(requests((5, 3)))
    scheduler.spec_algorithm = Algorithm.NGRAM
    engine = plain(scheduler, listener)
    (req,) = scheduler.running_batch.reqs
    assert gap_of(req) is None
    req.output_ids += [60, 61]
    req.kv.kv_committed_len += 2
    engine.request_return("catch-up")
    assert scheduler.turn().extend_lens == [1]
    listener.on_returned.assert_called_once_with(SpeculativeEntry(requests=1, tokens_caught_up=0))
