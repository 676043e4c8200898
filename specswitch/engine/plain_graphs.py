"""The target's forward for one token per request, on a server whose graphs were captured for verification.

The model runner's one decode graph runner holds graphs of ``TARGET_VERIFY`` with ``speculative_num_draft_tokens``
tokens per request, and its ``can_run`` looks at neither (``model_executor/cuda_graph_runner.py``, 0.5.12): a plain
batch would replay them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from specswitch.engine.hooks import swapped


def plain_forward(scheduler: Any) -> Callable[[], AbstractContextManager[None]]:
    """Makes contexts in which the target decodes plainly, eagerly."""
    runner = scheduler.tp_worker.model_runner
    return lambda: swapped(runner, graph_runner=None)
