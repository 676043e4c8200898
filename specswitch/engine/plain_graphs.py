"""The target's forward for one token per request, on a server whose CUDA graphs were captured for verification.

The model runner's one decode graph runner holds graphs of ``TARGET_VERIFY`` with ``speculative_num_draft_tokens``
tokens per request, and its check whether a batch fits looks at neither: a plain batch would replay a verify graph.
So a second graph runner is captured at start the way a server without speculation captures its own: forward mode
DECODE, one token per request, an attention backend that knows nothing of speculation, and no hidden states unless the
draft is to get them later (``draft_alone``): then all of them, for EAGLE3 the auxiliary ones.  Graph memory pool and
input buffers are those of the first, which SGLang keeps in module globals.

Relies on (0.5.11-0.5.12) ``model_executor/cuda_graph_runner.py`` ``CudaGraphRunner(model_runner, attn_backend=)``
and ``can_run``; (0.5.13 and later) ``model_executor/runner/decode_cuda_graph_runner.py`` ``DecodeCudaGraphRunner``
and ``can_run_graph``, ``model_executor/graph_shared_output.py``, ``runtime_context.py`` ``get_spec``; in all of them
``ModelRunner._get_attention_backend(init_new_workspace=True)``, which overwrites ``init_new_workspace``.
``EAGLEWorkerV2.build_adaptive_runtime_state`` makes further graph runners in the same way.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from specswitch.config import SwitchConfig
from specswitch.engine import graph_sizes
from specswitch.engine.hooks import swapped

_ON_SCHEDULER = "specswitch_plain_graphs"


@dataclass(frozen=True, slots=True)
class PlainGraphFacts:
    """What the second set of graphs holds and cost; logged as ``specswitch.plain_graphs``."""

    batch_sizes: tuple[int, ...]
    verify_batch_sizes: tuple[int, ...]
    """The sizes of the graphs that SGLang captured for verification."""
    start_seconds: float
    """Start time that it added."""
    memory_gb: float
    """Device memory that it added, GiB, its attention backend included; the driver's own share is not counted."""


class PlainForward(NamedTuple):
    """What the target's model runner holds while it decodes one token per request."""

    graph_runner: Any
    """None: it runs without graphs."""
    attn_backend: Any
    """None: its own."""


class PlainGraphs:
    """The graphs with which the target decodes plainly, and how often they did not fit."""

    def __init__(self, graph_runner: Any, attn_backend: Any, facts: PlainGraphFacts) -> None:
        self.facts = facts
        self.forward = PlainForward(graph_runner, attn_backend)
        self.eager_steps = 0
        """Plain steps that fitted none of the graphs and ran eagerly."""
        self.on_first_eager: Callable[[str], None] = _say_nothing
        """Called with one sentence at the first such step."""
        self._graphs = graph_runner
        check = "can_run_graph" if hasattr(graph_runner, "can_run_graph") else "can_run"
        self._fits = getattr(graph_runner, check)
        setattr(graph_runner, check, self._check)

    def _check(self, forward_batch: Any) -> bool:
        # a graph that holds no hidden states would be captured again (0.5.12) or raise (0.5.13 and later)
        hidden_states_fit = forward_batch.capture_hidden_mode <= self._graphs.capture_hidden_mode
        if hidden_states_fit and self._fits(forward_batch):
            return True
        self.eager_steps += 1
        if self.eager_steps == 1:
            why = (
                f"a batch of {forward_batch.batch_size} fits none of the graphs (up to {self.facts.batch_sizes[-1]})"
                if hidden_states_fit
                else "a request wants hidden states"
            )
            self.on_first_eager(
                f"A plain decode step ran without CUDA graph because {why}: such steps are slower,"
                " so raise --cuda-graph-max-bs or lower --max-running-requests if they are frequent."
            )
        return False


@contextmanager
def beside(scheduler: Any, server_args: Any, config: SwitchConfig) -> Iterator[None]:
    """In here ``scheduler`` is constructed, with verify graphs where SPECULATIVE runs and plain graphs for all sizes.

    The plain ones are captured as soon as SGLang has its own, because 0.5.17 and later may then give what memory is
    left to the KV pool (``Scheduler.init_model_worker``).
    """
    sizes, keeps_hidden_states = graph_sizes.of_server(server_args), config.draft_kv_budget > 0
    own_graphs = getattr(scheduler, "init_all_cuda_graphs", None)
    if own_graphs is not None:

        def both() -> None:
            del scheduler.init_all_cuda_graphs
            own_graphs()
            capture(scheduler, sizes, keeps_hidden_states)

        scheduler.init_all_cuda_graphs = both
    with graph_sizes.for_verify(server_args, config):
        yield
    if own_graphs is None:
        capture(scheduler, sizes, keeps_hidden_states)


def capture(scheduler: Any, sizes: Sequence[int], keeps_hidden_states: bool = False) -> PlainGraphs | None:
    """Capture plain decode graphs for the target of a speculative scheduler, and keep them on it.

    Args:
        sizes: the batch sizes for which a server without speculation captures decode graphs.
        keeps_hidden_states: whether the graphs put out what the draft takes.

    Returns:
        None where the server itself decodes without CUDA graphs: on a CPU, or because it was told so.
    """
    model_runner = scheduler.tp_worker.model_runner
    verify_graphs = getattr(model_runner, graph_slot(model_runner))
    graphs = None
    if _is_graph_runner(model_runner, verify_graphs):
        sizes = graph_sizes.for_plain(sizes, scheduler)
        graphs = _capture(model_runner, verify_graphs, sizes, keeps_hidden_states)
    setattr(scheduler, _ON_SCHEDULER, graphs)
    return graphs


def of(scheduler: Any) -> PlainGraphs | None:
    """The graphs captured for ``scheduler``; None if it has none."""
    graphs: PlainGraphs | None = getattr(scheduler, _ON_SCHEDULER, None)
    return graphs


def plain_forward(scheduler: Any) -> PlainForward:
    """How the target of ``scheduler`` decodes plainly: with the graphs of :func:`capture`, or eagerly."""
    graphs = of(scheduler)
    return PlainForward(None, None) if graphs is None else graphs.forward


def _capture(model_runner: Any, verify_graphs: Any, sizes: list[int], keeps_hidden_states: bool) -> PlainGraphs:
    started, reserved = time.perf_counter(), _reserved_memory(model_runner)
    hidden_states = _with_hidden_states(model_runner) if keeps_hidden_states else _without_auxiliary(model_runner)
    with _as_without_speculation(model_runner, sizes), hidden_states:
        backend = model_runner._get_attention_backend(init_new_workspace=True)
        plain_graphs = type(verify_graphs)(model_runner, attn_backend=backend)
    facts = PlainGraphFacts(
        batch_sizes=tuple(plain_graphs.capture_bs),
        verify_batch_sizes=tuple(verify_graphs.capture_bs),
        start_seconds=round(time.perf_counter() - started, 2),
        memory_gb=round(_reserved_memory(model_runner) - reserved, 3),
    )
    return PlainGraphs(plain_graphs, backend, facts)


@contextmanager
def _as_without_speculation(model_runner: Any, batch_sizes: list[int]) -> Iterator[None]:
    """In here, backends and graph runners made for the target are those of a server without speculation."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    no_speculation = dict.fromkeys(
        ("speculative_num_steps", "speculative_num_draft_tokens", "speculative_eagle_topk"), None
    )
    with ExitStack() as stack:
        stack.enter_context(
            swapped(
                model_runner,
                spec_algorithm=SpeculativeAlgorithm.NONE,
                init_new_workspace=model_runner.init_new_workspace,
            )
        )
        stack.enter_context(graph_sizes.decode_sizes(model_runner.server_args, batch_sizes))
        stack.enter_context(_arguments(model_runner.server_args, no_speculation, graph_sizes.published("get_spec")))
        if getattr(model_runner, "graph_shared_output", None) is not None:
            # sized for the verify graphs, which may be fewer rows than the plain ones need
            shared = type(model_runner.graph_shared_output).create_for_model_runner(model_runner)
            stack.enter_context(swapped(model_runner, graph_shared_output=shared))
        yield


@contextmanager
def _without_auxiliary(model_runner: Any) -> Iterator[None]:
    """In here the target puts out no hidden states beside the last layer's."""
    with ExitStack() as stack:
        for module in model_runner.model.modules():
            if getattr(module, "capture_aux_hidden_states", False):
                stack.enter_context(swapped(module, capture_aux_hidden_states=False))
            if isinstance(getattr(module, "layers_to_capture", None), list):
                stack.enter_context(swapped(module, layers_to_capture=[]))
        yield


def _with_hidden_states(model_runner: Any) -> AbstractContextManager[None]:
    """In here graphs are captured with the hidden states of every token, as for a server whose clients may ask."""
    values = {"enable_return_hidden_states": True, "return_hidden_states_mode": "full"}
    execution = graph_sizes.published("get_exec")
    return _arguments(model_runner.server_args, values, getattr(execution, "features", None))


@contextmanager
def _arguments(server_args: Any, values: dict[str, Any], published: Any) -> Iterator[None]:
    """Server arguments as given, wherever this release reads them from: ``ServerArgs`` or its published copy, which
    is the namespace ``published``."""
    with ExitStack() as stack:
        if published is not None:
            known = {name: value for name, value in values.items() if name in published}
            stack.enter_context(published.override(**known))
        if isinstance(getattr(server_args, "__dict__", None), dict):
            fields = vars(server_args)  # read-only by assignment from 0.5.17 on
            before = {name: fields[name] for name in values if name in fields}
            fields.update({name: values[name] for name in before})
            stack.callback(fields.update, before)
        yield


def graph_slot(model_runner: Any) -> str:
    """The attribute that holds the target's decode graph runner (renamed in 0.5.14)."""
    return "decode_cuda_graph_runner" if hasattr(model_runner, "decode_cuda_graph_runner") else "graph_runner"


def _is_graph_runner(model_runner: Any, candidate: Any) -> bool:
    if candidate is None or candidate is getattr(model_runner, "eager_runner", None):
        return False
    return "attn_backend" in inspect.signature(type(candidate)).parameters


def _reserved_memory(model_runner: Any) -> float:
    """GiB that this process holds on the target's device; another one may share it."""
    import torch

    device = torch.get_device_module(model_runner.device)
    return float(device.memory_reserved()) / 2**30 if hasattr(device, "memory_reserved") else 0.0


def _say_nothing(sentence: str) -> None:
    """What is called until somebody listens."""
