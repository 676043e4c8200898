"""A stand-in for the few pieces of SGLang 0.5.13 and later that the v2 engine touches, for tests without SGLang.

What the pieces do for real is tested on the real Scheduler in ``tests/real``; here they are told what to do.
"""

from __future__ import annotations

import contextlib
import enum
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch

import specswitch.engine


class Algorithm(enum.Enum):
    NONE = 0
    EAGLE = 1
    NGRAM = 2

    def is_none(self) -> bool:
        return self is Algorithm.NONE

    def is_ngram(self) -> bool:
        return self is Algorithm.NGRAM

    def is_standalone(self) -> bool:
        return False


class Forward(enum.Enum):
    EXTEND = 1
    DECODE = 2

    def is_extend(self) -> bool:
        return self is Forward.EXTEND

    def is_decode(self) -> bool:
        return self is Forward.DECODE


@dataclass
class Batch:
    """``ScheduleBatch``: only its fields and what filters it."""

    reqs: list[Any]
    batch_is_full: bool = False
    spec_algorithm: Any = Algorithm.EAGLE
    spec_info: Any = None
    forward_mode: Any = Forward.DECODE
    device: str = "cpu"
    req_to_token_pool: Any = None
    return_logprob: bool = False
    return_hidden_states: bool = False
    seq_lens: Any = None
    seq_lens_cpu: Any = None
    seq_lens_sum: Any = None
    orig_seq_lens: Any = None
    input_ids: Any = "ids"
    out_cache_loc: Any = "slots"
    prefill_input_ids_cpu: Any = None
    prefix_lens: Any = None
    extend_lens: Any = None
    extend_num_tokens: Any = None
    extend_logprob_start_lens: Any = None
    extend_input_logprob_token_ids: Any = None
    chunked_req: Any = "chunked"
    prefill_stats: Any = "stats"
    mix_running_indices: Any = "mixed"
    chunked_req_next_prompt_token: Any = 7
    decoding_reqs: Any = None
    is_prefill_only: bool = True
    input_embeds: Any = None
    needed: int = 0
    """What ``new_tokens_required_next_decode`` says."""
    needed_each: int = 0
    """What it says of a single request."""
    sampling_info: Any = field(
        default_factory=lambda: SimpleNamespace(
            penalizer_orchestrator=SimpleNamespace(is_required=False),
            acc_additive_penalties="sum",
            acc_scaling_penalties="product",
        )
    )

    def convert_decode_to_extend(self) -> None:
        """Marks 0.5.19 and later."""

    def batch_size(self) -> int:
        return len(self.reqs)

    def is_empty(self) -> bool:
        return not self.reqs

    def filter_batch(self) -> None:
        self.reqs = [req for req in self.reqs if not req.finished()]

    def new_tokens_required_next_decode(self, selected_indices: list[int] | None = None) -> int:
        return self.needed if selected_indices is None else self.needed_each


@dataclass
class Request:
    """``Req`` as 0.5.22 and later spell it."""

    rid: str
    origin_input_ids: list[int]
    output_ids: list[int]
    row: int
    allocated: int | None = None
    is_finished: bool = False
    extend_end: int | None = None
    return_hidden_states: bool = False
    kv: Any = field(init=False)
    sampling_params: Any = field(default_factory=lambda: SimpleNamespace(max_new_tokens=1000))

    def __post_init__(self) -> None:
        committed = len(self.origin_input_ids) + len(self.output_ids) - 1
        self.kv = SimpleNamespace(
            kv_committed_len=committed,
            kv_allocated_len=committed if self.allocated is None else self.allocated,
            req_pool_idx=self.row,
            cache_protected_len=0,
        )

    def finished(self) -> bool:
        return self.is_finished

    def refresh_fill_ids(self) -> None:
        """SGLang's own bookkeeping."""

    def __hash__(self) -> int:
        return id(self)


class Scheduler:
    """As much of ``Scheduler`` as the engine hooks; its turn does what a test tells it to."""

    def __init__(self, reqs: Sequence[Request], *, overlap: bool = True, page_size: int = 1) -> None:
        rows = 1 + max((req.row for req in reqs), default=0)
        width = 64
        slots = torch.arange(rows * width, dtype=torch.int32).reshape(rows, width)
        pool = SimpleNamespace(req_to_token=slots, free=lambda req: None)
        self.enable_overlap, self.page_size, self.device = overlap, page_size, "cpu"
        self.spec_algorithm = Algorithm.EAGLE
        self.draft_worker = MagicMock(topk=1, speculative_num_steps=3)
        runner = SimpleNamespace(decode_cuda_graph_runner="v", attn_backend="w", spec_algorithm=Algorithm.EAGLE)
        self.tp_worker = SimpleNamespace(enable_spec=True, model_runner=runner)
        self.model_worker = self.draft_worker
        self.server_args = SimpleNamespace(tp_size=1, speculative_num_draft_tokens=4)
        self.model_config = SimpleNamespace(is_encoder_decoder=False, is_multimodal=False, vocab_size=100)
        self.is_hybrid_swa = self.is_hybrid_ssm = False
        self.chunked_prefill_size = 512
        self.max_total_num_tokens = 1000
        self.req_to_token_pool = pool
        self.token_to_kv_pool_allocator = MagicMock(size=1000, device="cpu")
        self.token_to_kv_pool_allocator.available_size.return_value = 500
        self.tree_cache = PrefixCache()
        self.future_map = FutureMap(rows)
        self.metrics_reporter = MetricsReporter()
        self.forward_stream_ctx = contextlib.nullcontext()
        self.running_batch = Batch(list(reqs), req_to_token_pool=pool)
        self.last_batch: Batch | None = None
        self.chunked_req = None
        self.waiting_queue: list[Any] = []
        self.enable_priority_preemption = False
        self.result_queue: deque[Any] = deque()
        self._request_dispatcher = SimpleNamespace(_mapping={InternalStateRequest: self.get_internal_state})
        self.seen: dict[str, Any] = {}
        """What the stock methods saw."""

    def get_next_batch_to_run(self, running_batch: Batch, last_batch: Batch | None) -> Any:
        batch = self.update_running_batch(running_batch)
        return SimpleNamespace(running_batch=running_batch, batch_to_run=None if batch.is_empty() else batch)

    def update_running_batch(self, batch: Batch) -> Batch:
        self.seen["prepared as"] = batch.spec_algorithm
        batch.forward_mode = Forward.DECODE
        return batch

    def run_batch(self, batch: Batch) -> str:
        runner = self.tp_worker.model_runner
        self.seen |= {
            "worker": self.model_worker,
            "algorithm": (self.spec_algorithm, self.future_map.spec_algo),
            "enable_spec": self.tp_worker.enable_spec,
            "graphs": (runner.decode_cuda_graph_runner, runner.attn_backend, runner.spec_algorithm),
        }
        return "result"

    def launch_batch_sample_if_needed(self, result: Any, batch: Any) -> None:
        self.seen["sampled by"] = self.model_worker

    def process_batch_result(self, batch: Batch, result: Any) -> None:
        self.seen["processed"] = result

    def get_internal_state(self, request: Any) -> Any:
        return SimpleNamespace(internal_state={"startup_time": 1.0})

    def turn(self) -> Any:
        """One turn of the event loop up to the launch; returns what would be launched."""
        plan = self.get_next_batch_to_run(self.running_batch, self.last_batch)
        self.running_batch = plan.running_batch
        return plan.batch_to_run


class PrefixCache:
    def checkpoint(self, req: Any, *, up_to: int) -> None:
        """Inserts a request's slots."""

    def evictable_size(self) -> int:
        return 0

    def protected_size(self) -> int:
        return 0


class FutureMap:
    def __init__(self, rows: int) -> None:
        self.spec_algo = Algorithm.EAGLE
        self.output_tokens_buf = torch.full((rows,), -1)
        self.stashed: list[Any] = []

    def stash(self, rows: Any, payload: Any) -> None:
        self.stashed.append(payload)


class MetricsReporter:
    def __init__(self) -> None:
        self.spec_num_forward_ct = 0
        self.scheduler: Any = None
        self.reported: list[Any] = []

    def report_decode_stats(self) -> None:
        self.reported.append(self.scheduler.spec_algorithm)

    def report_prefill_stats(self, batch: Any = None, prefill_stats: Any = None) -> None:
        self.reported.append(prefill_stats)


class InternalStateRequest:
    pass


def modules() -> dict[str, ModuleType]:
    """What to put into ``sys.modules``."""
    pieces: dict[str, dict[str, Any]] = {
        "managers.schedule_batch": {"ScheduleBatch": Batch},
        "managers.io_struct": {"GetInternalStateReq": InternalStateRequest},
        "model_executor.forward_batch_info": {"ForwardMode": Forward},
        "sampling.sampling_batch_info": {"SamplingBatchInfo": MagicMock()},
        "speculative.spec_info": {"SpeculativeAlgorithm": Algorithm},
    }
    made = {}
    for path, attributes in pieces.items():
        parts = ["sglang", "srt", *path.split(".")]
        for depth in range(1, len(parts) + 1):
            name = ".".join(parts[:depth])
            made.setdefault(name, ModuleType(name))
        for name, value in attributes.items():
            setattr(made[".".join(parts)], name, value)
    return made


ENGINE_MODULES = (
    "draft_kv",
    "draft_alone",
    "beside",
    "common",
    "v2",
    "v2_batch",
    "v2_compat",
    "plain_graphs",
    "plain_launch",
    "supported_v2",
)


def forget_engine() -> None:
    """Let the engine's modules be imported afresh, so that they find the stand-in, or SGLang itself again."""
    for name in ENGINE_MODULES:
        sys.modules.pop(f"specswitch.engine.{name}", None)
        if hasattr(specswitch.engine, name):
            delattr(specswitch.engine, name)
