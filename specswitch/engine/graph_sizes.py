"""Which batch sizes get CUDA graphs: for verification, where SPECULATIVE can run; for plain decode, all admitted.

SGLang reads one list for every decode graph runner: ``ServerArgs.cuda_graph_bs`` up to 0.5.12, later
``cuda_graph_config.decode.bs`` of the published configuration (``model_executor/runner/base_cuda_graph_runner.py``
``get_batch_sizes_to_capture``).  It is the plain server's list; verification gets a shorter one while the scheduler
is constructed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from specswitch.config import SwitchConfig
from specswitch.engine.hooks import swapped


def speculative_limit(config: SwitchConfig) -> int | None:
    """The largest decode batch that runs in SPECULATIVE for longer than a drain or a dwell; None if any may."""
    if config.mode == "plain":
        return 1
    return config.high_watermark if config.mode == "auto" and config.policy == "watermark" else None


def up_to(sizes: Sequence[int], limit: int) -> list[int]:
    """The sizes below ``limit`` and the first that is not."""
    ordered = sorted(set(sizes))
    return [size for place, size in enumerate(ordered) if place == 0 or ordered[place - 1] < limit]


def reaching(sizes: Sequence[int], limit: int) -> list[int]:
    """The sizes, and above them steps as wide as SGLang's own up to ``limit`` (16, from 512 on 32)."""
    ordered = sorted(set(sizes))
    while ordered[-1] < limit:
        ordered.append(min(limit, ordered[-1] + (16 if ordered[-1] < 512 else 32)))
    return ordered


def of_server(server_args: Any) -> list[int]:
    """The batch sizes for which this server captures decode graphs; empty if it captures none."""
    owner, name = _setting(server_args)
    return list(getattr(owner, name, None) or ())


def for_plain(sizes: Sequence[int], scheduler: Any) -> list[int]:
    """The server's sizes, continued up to a request limit that the operator has set."""
    if scheduler.server_args.max_running_requests is None:
        return list(sizes)
    return reaching(sizes, scheduler.tp_worker.model_runner.req_to_token_pool.size)


def for_verify(server_args: Any, config: SwitchConfig) -> AbstractContextManager[None]:
    """In here a scheduler captures its verify and draft graphs: for the batch sizes of SPECULATIVE alone."""
    limit, sizes = speculative_limit(config), of_server(server_args)
    if limit is None or not sizes:
        return nullcontext()
    # with gathered buffers SGLang drops sizes that the ranks cannot share out
    return decode_sizes(server_args, up_to(sizes, max(limit, server_args.tp_size)))


def decode_sizes(server_args: Any, sizes: list[int]) -> AbstractContextManager[None]:
    """In here decode graphs are captured for ``sizes``.  SGLang may append to the list."""
    owner, name = _setting(server_args)
    return swapped(owner, **{name: sizes})


def published(namespace: str) -> Any:
    """A namespace of the published configuration, such as ``get_exec``; None on releases that publish none."""
    try:
        from sglang.srt import runtime_context
    except ImportError:
        return None
    return getattr(runtime_context, namespace)() if hasattr(runtime_context, namespace) else None


def _setting(server_args: Any) -> tuple[Any, str]:
    execution = published("get_exec")
    config = getattr(server_args, "cuda_graph_config", None) if execution is None else execution.graph.cuda_graph_config
    return (server_args, "cuda_graph_bs") if config is None else (config.decode, "bs")
