"""KV slots of running requests: what is committed, what is reserved, what the draft has not seen.

SGLang keeps one row of slot numbers per request in ``req_to_token`` (``[max requests, max context]``,
int32); a request's first ``kv_committed_len`` slots hold tokens, those up to ``kv_allocated_len`` are
reserved for draft tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

_DRAFT_LEN = "specswitch_draft_len"


def ceil_to_page(length: int, page_size: int) -> int:
    """The smallest multiple of ``page_size`` that is not below ``length``."""
    return -(-length // page_size) * page_size


def gather_slots(
    req_to_token: torch.Tensor, rows: Sequence[int], starts: Sequence[int], ends: Sequence[int]
) -> torch.Tensor:
    """``req_to_token[rows[i], starts[i]:ends[i]]`` for all ``i``, concatenated, in one gather.

    Returns:
        int64 tensor ``[sum(ends - starts)]`` on the device of ``req_to_token``; nothing is read back.
    """
    first = np.asarray(starts, dtype=np.int64)
    counts = np.asarray(ends, dtype=np.int64) - first
    total = int(counts.sum())
    width = req_to_token.shape[1]
    row_start = np.asarray(rows, dtype=np.int64) * width + first
    skipped = np.cumsum(counts) - counts
    flat = np.repeat(row_start - skipped, counts) + np.arange(total, dtype=np.int64)
    index = torch.from_numpy(flat).to(req_to_token.device, non_blocking=True)
    return req_to_token.view(-1)[index].to(torch.int64)


def draft_len(req: Any) -> int:
    """How many leading tokens of ``req`` have draft KV (0 if never noted)."""
    return getattr(req, _DRAFT_LEN, 0)


def note_draft_len(req: Any, length: int) -> None:
    """Note that the first ``length`` tokens of ``req`` have draft KV."""
    setattr(req, _DRAFT_LEN, length)


def token_range(req: Any, start: int, end: int) -> list[int]:
    """Tokens ``start..end`` of a request's prompt and output together, without joining the two in full."""
    prompt = req.origin_input_ids
    split = len(prompt)
    if start >= split:
        return list(req.output_ids[start - split : end - split])
    return list(prompt[start:end]) + list(req.output_ids[: max(0, end - split)])
