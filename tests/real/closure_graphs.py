"""CUDA graphs without a GPU: a graph is the closure that was captured, a replay runs it on the static buffers.

As with a real graph, nothing of the batch at hand reaches the captured code but what the runner copied into its
buffers and its attention backend's; a replay of the wrong graph gives wrong tokens, or none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from importlib import metadata
from types import SimpleNamespace
from typing import Any

from specswitch.engine.hooks import swapped


def closure_graphs() -> AbstractContextManager[Counter[str]]:
    """In here schedulers capture a decode graph runner for the target, on the CPU.

    From 0.5.17 on the CPU replays graphs for DECODE alone (``ForwardMode.is_cpu_graph``); verification runs eagerly.

    Yields:
        how many graphs were replayed, by forward mode and tokens per request: ``"DECODE 1"``, ``"TARGET_VERIFY 4"``.
    """
    return _graphs_0_5_12() if metadata.version("sglang").startswith("0.5.12") else _graphs_since_0_5_17()


class ClosureGraph:
    """Stands for ``torch.cuda.CUDAGraph``."""

    def __init__(self, replays: Counter[str], kind: str) -> None:
        self._replays, self._kind = replays, kind

    def capture(self, backend: Any, run: Callable[[], Any]) -> Any:
        self._backend, self._metadata, self._run = backend, backend.forward_metadata, run
        self._output = run()
        return self._output

    def replay(self) -> None:
        with swapped(self._backend, forward_metadata=self._metadata):
            fresh = self._run()
        for name in ("next_token_logits", "hidden_states"):
            held, new = getattr(self._output, name), getattr(fresh, name)
            assert (held is None) == (new is None), name
            if held is not None:
                held.copy_(new)
        self._replays[self._kind] += 1


@contextmanager
def _graphs_0_5_12() -> Iterator[Counter[str]]:
    from sglang.srt.model_executor import cuda_graph_runner
    from sglang.srt.model_executor.cuda_graph_runner import CudaGraphRunner
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.model_executor.model_runner import ModelRunner

    replays: Counter[str] = Counter()

    def capture(self: Any) -> None:
        self.stream = None
        for size in reversed(self.capture_bs):
            self.graphs[size], self.output_buffers[size] = self.capture_one_batch_size(
                size, self.model_runner.model.forward, None
            )

    def new_graph(self: Any) -> ClosureGraph:
        return ClosureGraph(replays, f"{self.capture_forward_mode.name} {self.num_tokens_per_bs}")

    def capture_graph(self: Any, graph: ClosureGraph, pool: Any, stream: Any, run: Callable[[], Any]) -> Any:
        return graph.capture(self.attn_backend, run)

    def init_device_graphs(self: Any) -> None:
        self.graph_mem_usage = 0
        self.graph_runner = None if self.is_draft_worker else CudaGraphRunner(self)

    with ExitStack() as stack:
        stack.enter_context(
            swapped(CudaGraphRunner, capture=capture, _capture_graph=capture_graph, _create_device_graph=new_graph)
        )
        stack.enter_context(swapped(ModelRunner, init_device_graphs=init_device_graphs))
        stack.enter_context(swapped(ForwardMode, is_cpu_graph=ForwardMode.is_cuda_graph))
        stack.enter_context(
            swapped(cuda_graph_runner, global_graph_memory_pool="pool", set_graph_pool_id=lambda *_: None)
        )
        yield replays


class _ClosureBackend:
    """Stands for ``FullCudaGraphBackend``, which captures and replays for a ``DecodeCudaGraphRunner``."""

    def __init__(self, runner: Any, replays: Counter[str]) -> None:
        self._runner, self._replays = runner, replays
        self._graphs: dict[Any, tuple[ClosureGraph, Any]] = {}

    def capture_session(self, stream: Any) -> AbstractContextManager[None]:
        return nullcontext()

    replay_session = nullcontext

    def capture_one(self, shape_key: Any, run: Callable[[], Any], **_: Any) -> None:
        runner = self._runner
        graph = ClosureGraph(self._replays, f"{runner.capture_forward_mode.name} {runner.captured_req_width}")
        self._graphs[shape_key] = graph, graph.capture(runner.attn_backend, run)

    def replay(self, shape_key: Any, batch: Any, **_: Any) -> Any:
        graph, output = self._graphs[shape_key]
        graph.replay()
        return output


@contextmanager
def _graphs_since_0_5_17() -> Iterator[Counter[str]]:
    from sglang.srt.layers.attention.intel_amx_backend import IntelAMXAttnBackend
    from sglang.srt.model_executor.graph_shared_output import GraphSharedOutput
    from sglang.srt.model_executor.model_runner_components import cuda_graph_setup
    from sglang.srt.model_executor.runner import decode_cuda_graph_runner
    from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner

    replays: Counter[str] = Counter()

    def shared_output(runner: Any) -> GraphSharedOutput:
        return GraphSharedOutput(device=runner.device, max_rows=runner.max_decode_logits_rows())

    def capture_decode_graph(*, model_runner: Any) -> Any:
        runner = None
        if not model_runner.is_draft_worker:
            runner = DecodeCudaGraphRunner(model_runner)
            if not runner.capture_forward_mode.is_decode():
                runner.can_run_graph = lambda batch: False
        return cuda_graph_setup.GraphCapture(runner=runner, memory_phase="decode", memory_usage_gb=0, capture_time=0)

    def plan(self: Any, batch: Any, in_capture: bool = False) -> None:
        self.init_forward_metadata(batch)

    def nothing(*_: Any, **__: Any) -> None:
        return None

    with ExitStack() as stack:
        if hasattr(DecodeCudaGraphRunner, "_run_in_graph_metadata_prep"):  # 0.5.23 asks the device whether it captures
            stack.enter_context(swapped(DecodeCudaGraphRunner, _run_in_graph_metadata_prep=nothing))
        for owner, values in (
            (GraphSharedOutput, {"create_for_model_runner": staticmethod(shared_output)}),
            (cuda_graph_setup, {"capture_decode_graph": capture_decode_graph}),
            (
                decode_cuda_graph_runner,
                {
                    "resolve_decode_backend": lambda runner: _ClosureBackend(runner, replays),
                    "graph_capture": lambda **_: nullcontext(SimpleNamespace(stream=None)),
                    "freeze_gc": nullcontext,  # a second of collections per capture
                },
            ),
            (
                IntelAMXAttnBackend,
                {
                    "init_cuda_graph_state": nothing,
                    "get_cuda_graph_seq_len_fill_value": lambda self: 1,
                    "init_forward_metadata_out_graph": plan,
                    "init_forward_metadata_in_graph": nothing,
                },
            ),
        ):
            stack.enter_context(swapped(owner, **values))
        yield replays
