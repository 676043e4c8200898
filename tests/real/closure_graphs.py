"""CUDA graphs without a GPU: a graph is the closure that was captured, a replay runs it on the static buffers.

As with a real graph, nothing of the batch at hand reaches the captured code but what the runner copied into its
buffers and its attention backend's; a replay of the wrong graph gives wrong tokens, or none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from specswitch.engine.hooks import swapped


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
def closure_graphs_0_5_12() -> Iterator[Counter[str]]:
    """In here schedulers of SGLang 0.5.12 capture a graph runner for the target.

    Yields:
        how many graphs were replayed, by forward mode and tokens per request: ``"DECODE 1"``, ``"TARGET_VERIFY 4"``.
    """
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
