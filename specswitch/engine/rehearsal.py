"""Run the forwards of a catch-up once before anything is served.

The first forward of a size that the GPU has not seen loads kernels and asks for memory, and the thread that launches it
then waits until the GPU has nothing left to do.  On an H200 beside a running batch such launches took 43 to 51 ms, and
12 ms the next time (docs/benchmarks): as long as a whole pause.

A rehearsed request has the first row of ``ReqToTokenPool``, which is full of zeros before anything is served (SGLang
hands it to nobody: read in 0.5.12.post1, 0.5.17 and 0.5.23), and with it slot 0 for every token, to which SGLang writes
what it pads batches with.  So nothing is taken from either pool.

Relies on ``sglang/srt/managers/schedule_batch.py`` ``Req``'s first four arguments and ``req_pool_idx``, and on what
``aside`` and ``aside_batch`` (``v2_batch``, ``draft_kv``) rely on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from specswitch.engine import v2_compat
from specswitch.engine.base import Rehearsal
from specswitch.engine.draft_alone import Range
from specswitch.engine.hooks import InstanceHooks

_BEFORE = 64
"""Tokens before the ones that are written: attention takes another way where there are none."""


def is_of_use(scheduler: Any) -> bool:
    """Whether there is a device that loads anything for a first forward."""
    return torch.device(scheduler.device).type != "cpu"


def before_first_turn(
    scheduler: Any,
    write: Callable[[list[Range]], None],
    sizes: Sequence[int],
    report: Callable[[Rehearsal | Exception], None],
) -> None:
    """:func:`rehearse` when the event loop comes to its first turn: its streams do not exist before.

    Args:
        report: is told what was run, or what went wrong.
    """
    hooks = InstanceHooks()

    def first(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        hooks.remove_all()
        try:
            report(rehearse(scheduler, write, sizes))
        except Exception as error:
            report(error)
        return original(*args, **kwargs)

    hooks.around(scheduler, "get_next_batch_to_run", first)


def rehearse(scheduler: Any, write: Callable[[list[Range]], None], sizes: Sequence[int]) -> Rehearsal:
    """Write draft KV of requests that nobody sent, once for each number of tokens in ``sizes``.

    Args:
        scheduler: SGLang's ``Scheduler``, which has not served anything.
        write: the engine's ``write_draft_kv``.
        sizes: in order; those that as many requests as may run at once cannot hold are left out.
    """
    began = time.perf_counter()
    rows, width = scheduler.req_to_token_pool.req_to_token.shape
    width = min(width, scheduler.model_config.context_len)
    before = min(_BEFORE, width // 4)
    most = width - before - 1  # of one request, where a token follows
    fitting = [size for size in sizes if size <= (rows - 1) * most]
    with torch.inference_mode():
        for size in fitting:
            counts = [min(most, size - start) for start in range(0, size, most)]
            write([(_request(before + count + 1), before, before + count) for count in counts])
    torch.get_device_module(scheduler.device).synchronize()
    return Rehearsal(len(fitting), max(fitting, default=0), time.perf_counter() - began)


def _request(tokens: int) -> Any:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    request = Req("specswitch-rehearsal", "", [0] * tokens, SamplingParams(temperature=0.0))
    v2_compat.set_row_index(request, 0)
    return request
