"""What SGLang 0.5.11-0.5.12 relays from one overlapped step to the next on a server without speculation: token ids.

Relies on ``managers/overlap_utils.py`` ``FutureMap``, made for draft inputs or for token ids, once and for all.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.managers.overlap_utils import FutureMap
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm


def plain_relay(scheduler: Any) -> FutureMap:
    """A ``FutureMap`` for token ids, of the size of the one that ``Scheduler.init_overlap`` makes."""
    return FutureMap(
        scheduler.max_running_requests,
        scheduler.chunked_prefill_size,
        scheduler.model_config.context_len,
        scheduler.device,
        SpeculativeAlgorithm.NONE,
    )
