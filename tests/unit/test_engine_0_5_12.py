"""The engines for SGLang 0.5.12 on a scheduler and workers that do what they are told."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from importlib import import_module, metadata
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from pytest_mock import MockerFixture

from specswitch.config import SwitchConfig
from specswitch.engine.base import PlainEntry, SpeculativeEntry
from specswitch.engine.draft_gap import gap_of
from specswitch.signals import Mode


def _release() -> str | None:
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return None


if _release() != "0.5.12.post1":
    pytest.skip("the engines import SGLang 0.5.12", allow_module_level=True)

GetInternalStateReq = import_module("sglang.srt.managers.io_struct").GetInternalStateReq
ForwardMode = import_module("sglang.srt.model_executor.forward_batch_info").ForwardMode
SpeculativeAlgorithm = import_module("sglang.srt.speculative.spec_info").SpeculativeAlgorithm
event_loops, plain_graphs, v1, v2_0_5_12 = (
    import_module(f"specswitch.engine.{name}") for name in ("event_loops", "plain_graphs", "v1", "v2_0_5_12")
)

NONE, EAGLE = SpeculativeAlgorithm.NONE, SpeculativeAlgorithm.EAGLE
WIDTH = 64
PATHS = ("v1", "v2")


class Request:
    """``Req``: the fields that the engines read and write."""

    def __init__(self, row: int, prompt: int, output: int, reserve: int = 0) -> None:
        self.rid, self.req_pool_idx = f"r{row}", row
        self.origin_input_ids = list(range(prompt))
        self.output_ids = list(range(50, 50 + output))
        self.kv_committed_len = prompt + output - 1
        self.kv_allocated_len = self.kv_committed_len + reserve
        self.cache_protected_len = 0
        self.return_hidden_states = self.is_finished = False
        self.sampling_params = SimpleNamespace(max_new_tokens=1000)
        self.fill_ids = self.origin_input_ids

    def finished(self) -> bool:
        return self.is_finished


class Batch:
    """``ScheduleBatch``: its fields, and what filters it."""

    def __init__(self, reqs: list[Request], pool: Any, algorithm: Any = EAGLE, extend: bool = False) -> None:
        self.reqs, self.req_to_token_pool, self.device = reqs, pool, "cpu"
        self.spec_algorithm, self.spec_info = algorithm, "draft input"
        self.forward_mode = ForwardMode.EXTEND if extend else ForwardMode.DECODE
        self.batch_is_full = self.enable_overlap = self.return_hidden_states = False
        self.input_ids = self.output_ids = self.out_cache_loc = "of the last step"
        self.seq_lens_cpu = torch.tensor([req.kv_committed_len for req in reqs], dtype=torch.int64)
        self.seq_lens = self.orig_seq_lens = self.seq_lens_sum = None
        self.prefix_lens = [0] * len(reqs)
        self.needed = 0
        self.sampling_info = SimpleNamespace(
            penalizer_orchestrator=SimpleNamespace(is_required=False),
            acc_additive_penalties="sum",
            acc_scaling_penalties="product",
        )

    def batch_size(self) -> int:
        return len(self.reqs)

    def is_empty(self) -> bool:
        return not self.reqs

    def filter_batch(self) -> None:
        self.reqs = [req for req in self.reqs if not req.finished()]

    def new_tokens_required_next_decode(self) -> int:
        return self.needed


class Scheduler:
    """As much of ``Scheduler`` as the engines hook; its turn does what a test tells it to."""

    def __init__(self, reqs: list[Request], mocker: MockerFixture, *, overlap: bool, page_size: int = 1) -> None:
        rows = 1 + max((req.req_pool_idx for req in reqs), default=0)
        slots = torch.arange(rows * WIDTH, dtype=torch.int32).reshape(rows, WIDTH)
        self.req_to_token_pool = SimpleNamespace(req_to_token=slots, free=lambda req: None)
        self.server_args = SimpleNamespace(
            speculative_algorithm="EAGLE",
            speculative_eagle_topk=1,
            speculative_num_steps=3,
            speculative_num_draft_tokens=4,
            chunked_prefill_size=512,
            disable_radix_cache=False,
        )
        self.enable_overlap, self.page_size, self.device = overlap, page_size, "cpu"
        self.spec_algorithm, self.tp_rank, self.tp_size = EAGLE, 0, 1
        self.max_running_requests, self.chunked_prefill_size = 8, 512
        self.draft_worker = mocker.MagicMock(topk=1)
        self.model_worker = self.draft_worker
        self.tp_worker = SimpleNamespace(enable_spec=True, enable_overlap=overlap, model_runner=SimpleNamespace())
        self.model_config = SimpleNamespace(
            is_encoder_decoder=False, is_multimodal=False, vocab_size=100, context_len=WIDTH
        )
        self.is_hybrid_swa = self.is_hybrid_ssm = False
        self.token_to_kv_pool_allocator = mocker.MagicMock(size=rows * WIDTH, device="cpu")
        self.token_to_kv_pool_allocator.available_size.return_value = 500
        self.tree_cache = mocker.MagicMock()
        self.tree_cache.evictable_size.return_value = 0
        self.future_map = mocker.MagicMock(future_buffer_len=32, device="cpu") if overlap else None
        self.running_batch = Batch(reqs, self.req_to_token_pool)
        self.last_batch: Batch | None = None
        self.chunked_req = None
        self.waiting_queue: list[Any] = []
        self.enable_priority_preemption = False
        self.result_queue: deque[Any] = deque()
        self.spec_num_forward_ct = 0
        self._request_dispatcher = SimpleNamespace(_mapping={GetInternalStateReq: self.get_internal_state})
        self.seen: dict[str, Any] = {}
        """What the stock methods saw."""

    def get_next_batch_to_run(self) -> Batch | None:
        batch = self.update_running_batch(self.running_batch)
        self.running_batch = batch
        return None if batch.is_empty() else batch

    def update_running_batch(self, batch: Batch) -> Batch:
        self.seen["prepared as"] = batch.spec_algorithm
        batch.forward_mode = ForwardMode.DECODE
        if batch.spec_algorithm.is_none():
            batch.seq_lens_cpu = batch.seq_lens_cpu + 1
        return batch

    def run_batch(self, batch: Batch) -> Any:
        self.seen |= {
            "worker": self.model_worker,
            "algorithm": self.spec_algorithm,
            "enable_spec": self.tp_worker.enable_spec,
            "launched": batch.forward_mode,
            "graphs": self.tp_worker.model_runner.graph_runner,
        }
        if "broken" in self.seen:
            raise RuntimeError("out of memory")
        return SimpleNamespace()

    def process_batch_result(self, batch: Batch, result: Any) -> None:
        self.seen["processed as"] = batch.spec_algorithm

    def report_decode_stats(self) -> None:
        self.seen["reported as"] = self.spec_algorithm

    def get_internal_state(self, request: Any) -> Any:
        return SimpleNamespace(internal_state={"startup_time": 1.0})

    def event_loop_normal(self) -> str:
        return "normal"

    def event_loop_overlap(self) -> str:
        return "overlap"


Make = Callable[..., tuple[Scheduler, Any, MagicMock]]


@pytest.fixture
def make(mocker: MockerFixture) -> Make:
    """Makes a scheduler, an engine attached to it, and the listener."""

    def made(
        path: str,
        reqs: list[Request],
        *,
        page_size: int = 1,
        loop: Callable[[Scheduler], str] | None = None,
        **settings: Any,
    ) -> tuple[Scheduler, Any, MagicMock]:
        scheduler = Scheduler(reqs, mocker, overlap=path == "v2", page_size=page_size)
        if loop is not None:
            scheduler.event_loop_normal = scheduler.event_loop_overlap = partial(loop, scheduler)
        listener = mocker.MagicMock()
        listener.status.return_value = {"mode": "PLAIN"}
        scheduler.tp_worker.model_runner.graph_runner = "verify graphs"
        forward = plain_graphs.plain_forward(scheduler)
        config = SwitchConfig(**{"plain_overlap": "off", "max_pause_ms": 1000, **settings})
        engine_class = v1.V1Engine if path == "v1" else v2_0_5_12.V2Engine0512
        engine = engine_class(scheduler, "0.5.12.post1", forward, config)
        engine.attach(listener)
        return scheduler, engine, listener

    return made


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


# SPECULATIVE and DRAINING


def test_until_asked_the_scheduler_behaves_as_without_hooks(path: str, make: Make) -> None:
    scheduler, _, listener = make(path, [Request(0, 5, 3)])
    batch = scheduler.get_next_batch_to_run()
    assert batch is scheduler.running_batch
    scheduler.run_batch(batch)
    assert scheduler.seen["prepared as"] is EAGLE
    assert scheduler.seen["worker"] is scheduler.draft_worker
    assert scheduler.seen["algorithm"] is EAGLE
    listener.on_turn.assert_called_once_with()


def test_released_hooks_leave_nothing_behind(path: str, make: Make, mocker: MockerFixture) -> None:
    untouched = set(vars(Scheduler([Request(0, 5, 3)], mocker, overlap=path == "v2")))
    scheduler, engine, _ = make(path, [Request(0, 5, 3)])
    engine.release()
    assert set(vars(scheduler)) == untouched
    assert scheduler._request_dispatcher._mapping[GetInternalStateReq] == scheduler.get_internal_state


def test_hooks_stay_while_plain(path: str, make: Make) -> None:
    _, engine, _ = make(path, [Request(0, 5, 3)])
    engine.enter_plain()
    with pytest.raises(RuntimeError, match="speculative form"):
        engine.release()


def test_facts_name_what_really_runs(make: Make) -> None:
    _, engine, _ = make("v1", [Request(0, 5, 3)], page_size=16)
    facts = engine.facts
    assert (facts.path, facts.worker, facts.overlap) == ("v1", "MagicMock", False)
    assert (facts.topk, facts.num_steps, facts.num_draft_tokens, facts.page_size) == (1, 3, 4, 16)


def test_a_sample_counts_unfinished_and_just_prefilled_requests(path: str, make: Make) -> None:
    running, finished, prefilled, chunked = (Request(row, 5, 1) for row in range(4))
    finished.is_finished = True
    scheduler, engine, _ = make(path, [running, finished])
    scheduler.last_batch = Batch([prefilled, chunked], scheduler.req_to_token_pool, extend=True)
    scheduler.chunked_req = chunked
    scheduler.waiting_queue = ["one", "two"]
    sample = engine.sample(Mode.SPECULATIVE, 4, 2)
    assert (sample.decode_batch_size, sample.queue_length, sample.decode_step, sample.steps_in_mode) == (2, 2, 4, 2)


def test_a_verify_step_is_counted_with_its_tokens_and_a_plain_one_does_not_dilute_it(path: str, make: Make) -> None:
    scheduler, engine, listener = make(path, [Request(0, 5, 3), Request(1, 4, 2)])
    scheduler.process_batch_result(scheduler.running_batch, SimpleNamespace(num_correct_drafts=3))
    listener.on_decode_step.assert_called_with(Mode.SPECULATIVE)
    engine.enter_plain()
    scheduler.process_batch_result(scheduler.running_batch, SimpleNamespace())
    listener.on_decode_step.assert_called_with(Mode.PLAIN)
    assert engine.sample(Mode.PLAIN, 2, 1).accept_length == 2.5


def test_draining_launches_nothing_and_loses_nobody(path: str, make: Make) -> None:
    scheduler, engine, _ = make(path, [Request(0, 5, 3)])
    held = scheduler.running_batch
    held.batch_is_full = True
    engine.start_drain()
    assert scheduler.get_next_batch_to_run() is None
    assert scheduler.running_batch is held
    assert "prepared as" not in scheduler.seen
    engine.cancel_drain()
    assert scheduler.get_next_batch_to_run() is held


def test_only_the_overlap_loop_has_results_in_flight(make: Make) -> None:
    scheduler, engine, _ = make("v2", [Request(0, 5, 3)])
    scheduler.result_queue.append((Batch([], None, extend=True), "a prefill's result"))
    assert engine.drained()
    scheduler.result_queue.append((scheduler.running_batch, "a step's result"))
    assert not engine.drained()
    _, engine, _ = make("v1", [Request(0, 5, 3)])
    assert engine.drained()


# SPECULATIVE -> PLAIN


@pytest.mark.parametrize(
    ("page_size", "freed"),
    [(1, [[*range(7, 15)], [*range(64 + 5, 64 + 13)]]), (4, [[*range(8, 15)], [*range(64 + 8, 64 + 13)]])],
)
def test_slots_reserved_past_the_last_page_go_back(page_size: int, freed: list[list[int]], make: Make) -> None:
    reqs = [Request(0, 5, 3, reserve=8), Request(1, 4, 2, reserve=8)]
    scheduler, engine, _ = make("v2", reqs, page_size=page_size)
    entry = engine.enter_plain()
    (slots,) = scheduler.token_to_kv_pool_allocator.free.call_args.args
    assert slots.tolist() == [slot for row in freed for slot in row]
    whole_pages = sum(-(-req.kv_committed_len // page_size) * page_size for req in reqs)
    allocated = sum(-(-(req.kv_committed_len + 8) // page_size) * page_size for req in reqs)
    assert entry == PlainEntry(requests=2, slots_given_back=allocated - whole_pages)
    assert [req.kv_allocated_len for req in reqs] == [7, 5]


def test_nothing_is_freed_where_nothing_is_reserved(make: Make) -> None:
    scheduler, engine, _ = make("v1", [Request(0, 5, 3)])
    assert engine.enter_plain() == PlainEntry(requests=1, slots_given_back=0)
    scheduler.token_to_kv_pool_allocator.free.assert_not_called()


def test_entering_plain_rebuilds_the_batch(path: str, make: Make) -> None:
    reqs = [Request(0, 5, 3), Request(1, 4, 2)]
    reqs[1].return_hidden_states = True
    scheduler, engine, _ = make(path, reqs)
    engine.enter_plain()
    batch = scheduler.running_batch
    assert batch.spec_algorithm is NONE
    assert batch.spec_info is batch.input_ids is batch.out_cache_loc is None
    assert batch.output_ids.tolist() == [52, 51]
    assert batch.seq_lens.tolist() == batch.seq_lens_cpu.tolist() == batch.orig_seq_lens.tolist() == [7, 5]
    assert (batch.seq_lens.dtype, batch.orig_seq_lens.dtype, batch.seq_lens_sum) == (torch.int64, torch.int32, 12)
    assert batch.return_hidden_states
    assert [gap_of(req) for req in reqs] == [7, 5]


def test_finished_requests_are_left_out_and_admission_opens(path: str, make: Make) -> None:
    reqs = [Request(0, 5, 3, reserve=4), Request(1, 4, 2, reserve=4)]
    reqs[0].is_finished = True
    scheduler, engine, _ = make(path, reqs)
    scheduler.running_batch.batch_is_full = True
    assert engine.enter_plain().requests == 1
    assert scheduler.running_batch.reqs == [reqs[1]]
    assert not scheduler.running_batch.batch_is_full
    assert reqs[0].kv_allocated_len == 11, "a finished request's slots are SGLang's to free"


# PLAIN


def test_a_plain_batch_goes_the_way_of_a_server_without_speculation(path: str, make: Make) -> None:
    scheduler, engine, _ = make(path, [Request(0, 5, 3)])
    engine.enter_plain()
    batch = scheduler.get_next_batch_to_run()
    scheduler.run_batch(batch)
    assert scheduler.seen["prepared as"] is NONE
    assert scheduler.seen["worker"] is scheduler.tp_worker
    assert scheduler.seen["algorithm"] is NONE
    assert not scheduler.seen["enable_spec"]
    assert scheduler.seen["graphs"] is None
    assert (scheduler.model_worker, scheduler.spec_algorithm) == (scheduler.draft_worker, EAGLE)


def test_what_a_plain_launch_changes_is_put_back_when_it_fails(path: str, make: Make) -> None:
    scheduler, engine, _ = make(path, [Request(0, 5, 3)])
    engine.enter_plain()
    scheduler.seen["broken"] = True
    with pytest.raises(RuntimeError, match="out of memory"):
        scheduler.run_batch(scheduler.running_batch)
    assert (scheduler.model_worker, scheduler.spec_algorithm) == (scheduler.draft_worker, EAGLE)
    assert scheduler.tp_worker.enable_spec
    assert scheduler.tp_worker.model_runner.graph_runner == "verify graphs"


def test_a_prefill_joins_in_plain_form(path: str, make: Make) -> None:
    joining = Request(1, 9, 1)
    joining.return_hidden_states = True
    scheduler, engine, _ = make(path, [Request(0, 5, 3)])
    engine.enter_plain()
    scheduler.last_batch = Batch([joining], scheduler.req_to_token_pool, extend=True)
    scheduler.get_next_batch_to_run()
    assert scheduler.last_batch.spec_algorithm is NONE
    assert scheduler.last_batch.spec_info is None
    assert scheduler.last_batch.return_hidden_states
    assert gap_of(joining) == 9


def test_the_overlap_map_relays_token_ids_of_plain_steps_and_prefills(make: Make) -> None:
    scheduler, _, _ = make("v2", [Request(0, 5, 3)])
    where = SimpleNamespace(interval=slice(3, 5))
    tokens = torch.tensor([41, 42], dtype=torch.int32)
    plain_step = SimpleNamespace(accept_lens=None, next_token_ids=tokens, next_draft_input=None)
    scheduler.future_map.store_to_map(where, plain_step)
    waiting = SimpleNamespace(spec_algorithm=NONE, input_ids=torch.tensor([-3, -4, 17]))
    scheduler.future_map.resolve_future(waiting)
    assert waiting.input_ids.tolist() == [41, 42, 17]


def test_the_log_line_of_an_interval_without_verify_steps_is_a_plain_server_s(path: str, make: Make) -> None:
    scheduler, _, _ = make(path, [Request(0, 5, 3)])
    scheduler.report_decode_stats()
    assert scheduler.seen["reported as"] is NONE
    scheduler.spec_num_forward_ct = 3
    scheduler.report_decode_stats()
    assert scheduler.seen["reported as"] is EAGLE


def test_the_status_is_shown_in_server_info(path: str, make: Make) -> None:
    scheduler, _, _ = make(path, [Request(0, 5, 3)])
    reply = scheduler._request_dispatcher._mapping[GetInternalStateReq](GetInternalStateReq())
    assert reply.internal_state["startup_time"] == 1.0
    assert reply.internal_state["specswitch"]["mode"] == "PLAIN"


# PLAIN -> SPECULATIVE


def plain_for(engine: Any, scheduler: Scheduler, tokens: int) -> None:
    """Enter PLAIN and let every request put out so many tokens there."""
    engine.enter_plain()
    for req in scheduler.running_batch.reqs:
        req.output_ids += range(80, 80 + tokens)
        req.kv_committed_len += tokens
        req.kv_allocated_len += tokens
    scheduler.running_batch.seq_lens_cpu += tokens


def test_the_return_launches_the_batch_once_as_an_extend_over_what_the_draft_missed(path: str, make: Make) -> None:
    reqs = [Request(0, 5, 3), Request(1, 4, 2)]
    scheduler, engine, listener = make(path, reqs)
    plain_for(engine, scheduler, 2)
    engine.request_return("catch-up")
    batch = scheduler.get_next_batch_to_run()
    assert batch.forward_mode is ForwardMode.EXTEND
    assert batch.spec_algorithm is EAGLE
    assert (batch.prefix_lens, batch.extend_lens, batch.extend_num_tokens) == ([7, 5], [3, 3], 6)
    assert batch.input_ids.tolist() == [52, 80, 81, 51, 80, 81]
    assert batch.out_cache_loc.tolist() == [7, 8, 9, 64 + 5, 64 + 6, 64 + 7]
    listener.on_returned.assert_not_called()

    result = scheduler.run_batch(batch)
    assert scheduler.seen["launched"] is ForwardMode.EXTEND
    assert scheduler.seen["worker"] is scheduler.draft_worker
    assert batch.forward_mode is ForwardMode.DECODE, "or SGLang would merge it into itself"

    scheduler.process_batch_result(batch, result)
    assert scheduler.seen["processed as"] is NONE
    assert batch.spec_algorithm is EAGLE
    listener.on_returned.assert_called_once_with(SpeculativeEntry(requests=2, tokens_caught_up=6))
    assert [gap_of(req) for req in reqs] == [None, None]


def test_a_request_that_finished_with_the_return_leaves_no_draft_input_behind(make: Make) -> None:
    reqs = [Request(0, 5, 3), Request(1, 4, 2)]
    scheduler, engine, _ = make("v1", reqs)
    plain_for(engine, scheduler, 1)
    engine.request_return("catch-up")
    batch = scheduler.get_next_batch_to_run()
    result = scheduler.run_batch(batch)
    reqs[0].is_finished = True
    scheduler.process_batch_result(batch, result)
    assert batch.reqs == [reqs[1]]


def test_a_cold_return_knows_the_last_tokens_alone(path: str, make: Make, mocker: MockerFixture) -> None:
    mocker.patch("sglang.srt.speculative.eagle_info.EagleDraftInput.hidden_size_for", return_value=4)
    mocker.patch("sglang.srt.speculative.eagle_info.EagleDraftInput.dtype_for", return_value=torch.float32)
    scheduler, engine, listener = make(path, [Request(0, 5, 3), Request(1, 4, 2)])
    plain_for(engine, scheduler, 2)
    engine.request_return("cold")
    batch = scheduler.get_next_batch_to_run()
    assert scheduler.seen["prepared as"] is EAGLE
    assert batch.spec_info.bonus_tokens.tolist() == [81, 81]
    assert batch.spec_info.hidden_states.tolist() == [[0.0] * 4] * 2
    listener.on_returned.assert_called_once_with(SpeculativeEntry(requests=2, tokens_caught_up=0))
    if path == "v2":
        scheduler.future_map.store_to_map_for_new_batch.assert_called_once()


def test_no_return_while_the_pool_has_no_room_for_the_reserve(path: str, make: Make) -> None:
    scheduler, engine, listener = make(path, [Request(0, 5, 3)])
    plain_for(engine, scheduler, 2)
    scheduler.running_batch.needed = 500
    engine.request_return("catch-up")
    for too_few in (scheduler.token_to_kv_pool_allocator.available_size.return_value, 501):
        scheduler.token_to_kv_pool_allocator.available_size.return_value = too_few
        assert scheduler.get_next_batch_to_run().forward_mode is ForwardMode.DECODE
    listener.on_returned.assert_not_called()
    scheduler.token_to_kv_pool_allocator.available_size.return_value = 502
    assert scheduler.get_next_batch_to_run().forward_mode is ForwardMode.EXTEND


def test_no_return_while_a_request_wants_hidden_states(path: str, make: Make) -> None:
    req = Request(0, 5, 3)
    req.return_hidden_states = True
    scheduler, engine, _ = make(path, [req])
    plain_for(engine, scheduler, 2)
    engine.request_return("catch-up")
    assert scheduler.get_next_batch_to_run().forward_mode is ForwardMode.DECODE


def test_the_return_waits_for_the_result_in_flight(make: Make) -> None:
    scheduler, engine, _ = make("v2", [Request(0, 5, 3)])
    plain_for(engine, scheduler, 2)
    held = scheduler.running_batch
    scheduler.result_queue.append((held, "result"))
    engine.request_return("catch-up")
    assert scheduler.get_next_batch_to_run() is None
    assert scheduler.running_batch is held
    scheduler.result_queue.clear()
    assert scheduler.get_next_batch_to_run().forward_mode is ForwardMode.EXTEND


def test_a_return_taken_back_leaves_a_plain_batch(path: str, make: Make) -> None:
    scheduler, engine, _ = make(path, [Request(0, 5, 3)])
    plain_for(engine, scheduler, 2)
    engine.request_return("catch-up")
    assert engine.cancel_return()
    assert scheduler.get_next_batch_to_run().spec_algorithm is NONE


def test_with_nobody_running_the_return_is_immediate(path: str, make: Make) -> None:
    scheduler, engine, listener = make(path, [])
    engine.enter_plain()
    engine.request_return("catch-up")
    scheduler.get_next_batch_to_run()
    listener.on_returned.assert_called_once_with(SpeculativeEntry(requests=0, tokens_caught_up=0))
    assert not engine.cancel_return(), "it is complete"


@pytest.mark.parametrize("broken", ["_has_room_to_return", "_needs_aside", "_result_in_flight"])
def test_a_return_that_fails_before_it_begins_is_given_up(
    broken: str, path: str, make: Make, mocker: MockerFixture
) -> None:
    scheduler, engine, listener = make(path, [Request(0, 5, 3)])
    plain_for(engine, scheduler, 2)
    mocker.patch.object(engine, broken, side_effect=RuntimeError("broken"))
    engine.request_return("catch-up")
    for _ in range(2):
        assert scheduler.get_next_batch_to_run().spec_algorithm is NONE
    listener.on_fault.assert_called_once_with("returning to SPECULATIVE", mocker.ANY)


# The loops of v1


def test_the_overlap_loop_runs_while_plain(make: Make, mocker: MockerFixture) -> None:
    mocker.patch.object(event_loops, "FutureMap")
    entered = []

    def loop(scheduler: Scheduler) -> str:
        entered.append("overlap" if scheduler.enable_overlap else "normal")
        scheduler.get_next_batch_to_run()
        return "ended"

    scheduler, engine, _ = make("v1", [Request(0, 5, 3)], plain_overlap="on", loop=loop)
    assert scheduler.event_loop_normal() == "ended"
    engine.enter_plain()
    assert scheduler.event_loop_normal() == "ended"
    assert entered == ["normal", "normal", "overlap"]
    assert scheduler.running_batch.enable_overlap
    assert scheduler.tp_worker.enable_overlap


def test_the_normal_loop_runs_again_before_the_return(make: Make, mocker: MockerFixture) -> None:
    mocker.patch.object(event_loops, "FutureMap")
    scheduler, engine, _ = make("v1", [Request(0, 5, 3)], plain_overlap="on")
    plain_for(engine, scheduler, 2)
    with pytest.raises(event_loops._LeaveLoop):
        scheduler.get_next_batch_to_run()
    assert scheduler.enable_overlap
    batch = scheduler.running_batch
    batch.output_ids = "futures"

    engine.request_return("catch-up")
    with pytest.raises(event_loops._LeaveLoop):
        scheduler.get_next_batch_to_run()
    assert not scheduler.enable_overlap
    assert not batch.enable_overlap
    assert batch.output_ids.tolist() == [81]
    assert batch.sampling_info.acc_additive_penalties is batch.sampling_info.acc_scaling_penalties is None
    assert scheduler.get_next_batch_to_run().forward_mode is ForwardMode.EXTEND
