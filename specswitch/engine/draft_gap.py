"""What the draft's KV cache does not hold: one position per running request, one flag per KV slot.

A draft model writes KV for every token it is shown; tokens decoded while PLAIN are not shown to it.  For a running
request the missing tokens are those from its *gap* on (it has none while it speculates).  Slots that live on in the
prefix cache after their request are remembered by a flag, so that a later request that reuses them knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_GAP = "specswitch_draft_gap"


def gap_of(req: Any) -> int | None:
    """The first token of ``req`` without draft KV, or None if the draft has seen them all."""
    gap: int | None = getattr(req, _GAP, None)
    return gap


def open_gap(req: Any, at: int) -> None:
    """From token ``at`` on the draft sees nothing, unless it has missed earlier ones already."""
    known = gap_of(req)
    setattr(req, _GAP, at if known is None else min(known, at))


def set_gap(req: Any, at: int | None) -> None:
    """The draft has seen the tokens before ``at`` and no later one; all of them if None."""
    setattr(req, _GAP, at)


class UnseenSlots:
    """A flag per KV slot: whether it holds a token whose draft KV was never written.

    Flags are right for slots in the prefix cache; those of free slots and of running requests mean nothing until
    :meth:`note` is called as their row goes into the cache.  A server that was never PLAIN pays nothing.
    """

    def __init__(self, slots: int, device: Any) -> None:
        """``slots``: the highest slot number plus one."""
        self._flags = torch.zeros(slots, dtype=torch.bool, device=device)
        self.any = False
        """Whether a slot was ever flagged since the last :meth:`clear`."""

    def note(self, row: torch.Tensor, gap: int | None) -> None:
        """A request's ``row`` of slots goes into the prefix cache, its tokens from ``gap`` on unseen."""
        seen = len(row) if gap is None else min(gap, len(row))
        if not self.any and seen == len(row):
            return
        self.any = True
        slots = row.long()
        self._flags.index_fill_(0, slots[:seen], False)
        if seen < len(row):
            self._flags.index_fill_(0, slots[seen:], True)

    def gaps_in(self, slots: torch.Tensor, lengths: Sequence[int]) -> list[int | None]:
        """The first flagged position in each of the consecutive rows that ``slots`` holds, None where all are seen.

        Reads the flags back from the device.
        """
        rows = self._flags[slots].cpu().split(list(lengths))
        return [int(row.to(torch.uint8).argmax()) if bool(row.any()) else None for row in rows]

    def clear(self) -> None:
        """The prefix cache was emptied."""
        self._flags.zero_()
        self.any = False
