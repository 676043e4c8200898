"""Hidden states that the target put out while PLAIN, kept for the draft that has yet to see those tokens.

They are kept by KV slot, not by request: a token without draft KV was decoded while PLAIN by the request at hand or
by an earlier one whose prefix it reuses, at the same slot, so that retraction, abort, merging and the prefix cache
change nothing.  What keeps this right is one rule: every forward of the target that writes KV to a slot either keeps
the slot's hidden state or forgets the slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class KeptHidden:
    """A ring of hidden states on the device; the newest take the place of the oldest.

    :meth:`keep` and :meth:`forget` wait for nothing; they and the readers belong on the stream of the forwards.
    """

    def __init__(self, budget: int, slots: int, device: Any) -> None:
        """
        Args:
            budget: bytes that the hidden states may take; what tells them apart, 8 bytes a slot, comes on top.
            slots: the highest slot number plus one.

        Raises:
            torch.OutOfMemoryError: the device has less free.
        """
        with torch.inference_mode(False):  # also written to where no inference mode is on
            self._memory = torch.empty(budget, dtype=torch.uint8, device=device)
            """uint8 ``[budget]``: taken at once, before anybody knows how wide a hidden state is."""
        self._nowhere = slots
        self._row_of_slot = torch.full((slots + 1,), -1, dtype=torch.int64, device=device)
        """int64 ``[slots + 1]``: the row that holds a slot's hidden state, -1 if none does; the last is no slot."""
        self._states: torch.Tensor | None = None
        """``[rows, hidden size]`` in the target's dtype: the memory, once the first hidden state is seen."""
        self._slot_of_row: torch.Tensor
        """int64 ``[rows]``: the slot that a row was last written for."""
        self._numbers: torch.Tensor
        """int64 ``[rows]``: 0, 1, 2..."""
        self._next = 0
        self.written = 0
        """Hidden states ever kept."""

    @property
    def rows(self) -> int:
        """Hidden states that fit; 0 until the first is seen."""
        return 0 if self._states is None else len(self._states)

    @property
    def overwritten(self) -> int:
        """Hidden states that newer ones took the place of."""
        return max(0, self.written - self.rows)

    def _divide(self, like: torch.Tensor) -> torch.Tensor:
        """The memory as rows like those of ``like``, a ``[tokens, hidden size]`` tensor of the target's."""
        row = like.shape[1] * like.element_size()
        rows = len(self._memory) // row
        if not rows:
            raise ValueError(f"a hidden state takes {row} bytes, and all together may take {len(self._memory)}")
        with torch.inference_mode(False):
            self._slot_of_row = torch.full((rows,), self._nowhere, dtype=torch.int64, device=like.device)
            self._numbers = torch.arange(rows, dtype=torch.int64, device=like.device)
            return self._memory[: rows * row].view(like.dtype).view(rows, like.shape[1])

    def keep(self, slots: torch.Tensor, hidden: torch.Tensor) -> None:
        """Keep what the target put out for the tokens just written to ``slots``.

        Args:
            slots: ``[tokens]``, no slot twice.
            hidden: ``[tokens, hidden size]``.
        """
        if self._states is None:
            self._states = self._divide(hidden)
        slots = slots.long()
        if len(slots) > self.rows:
            self.forget(slots[self.rows :])
            slots, hidden = slots[: self.rows], hidden[: self.rows]
        rows = self._take_rows(len(slots))
        former = self._slot_of_row[rows]
        # a slot that was kept again since then points at a newer row
        outdated = torch.where(self._row_of_slot[former] == rows, former, self._nowhere)
        self._row_of_slot.index_fill_(0, outdated, -1)
        self._row_of_slot.index_copy_(0, slots, rows)
        self._slot_of_row.index_copy_(0, rows, slots)
        self._states.index_copy_(0, rows, hidden)
        self.written += len(slots)

    def forget(self, slots: torch.Tensor) -> None:
        """Other tokens were written to ``slots``, or the same ones without their hidden states being kept."""
        if self.written:
            self._row_of_slot.index_fill_(0, slots.long(), -1)

    def leading(self, slots: torch.Tensor, lengths: Sequence[int]) -> list[int]:
        """How many tokens are kept from the start of each of the consecutive ranges that ``slots`` holds.

        Reads back from the device.
        """
        return [_leading(kept) for kept in self._is_kept(slots).split(list(lengths))]

    def lacking(self, slots: torch.Tensor, lengths: Sequence[int]) -> list[int]:
        """How many tokens are not kept from the start of each range, before the first that is; reads back too."""
        return [_leading(~kept) for kept in self._is_kept(slots).split(list(lengths))]

    def _is_kept(self, slots: torch.Tensor) -> torch.Tensor:
        return (self._row_of_slot[slots] >= 0).cpu()

    def of(self, slots: torch.Tensor) -> torch.Tensor:
        """``[tokens, hidden size]``: what is kept for ``slots``, all of which must be."""
        assert self._states is not None
        return self._states[self._row_of_slot[slots]]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able state for ``/server_info``."""
        return {
            "rows": self.rows,
            "rows_held": min(self.written, self.rows),
            "rows_overwritten": self.overwritten,
            "mib": round(self._memory.nbytes / 2**20, 1),
        }

    def _take_rows(self, count: int) -> torch.Tensor:
        """int64 ``[count]``: the rows whose turn it is."""
        start, end = self._next, self._next + count
        self._next = end % self.rows
        if end <= self.rows:
            return self._numbers[start:end]
        return torch.cat((self._numbers[start:], self._numbers[: end - self.rows]))


def _leading(flags: torch.Tensor) -> int:
    """How many flags are set before the first that is not."""
    return len(flags) if bool(flags.all()) else int(flags.to(torch.uint8).argmin())
