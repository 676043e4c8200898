"""What the goodput policy expects of both modes for the batch at hand."""

from __future__ import annotations

from typing import NamedTuple

from specswitch.signals import Mode


class Outlook(NamedTuple):
    """What both modes promise for the batch at hand."""

    mode: Mode
    other: Mode
    size: int
    """Decode batch size."""
    accept: float
    plain: float
    """Predicted seconds of a plain step."""
    speculative: float
    """Predicted seconds of a verify step."""

    here: float
    """Predicted seconds of a step in the present mode."""
    other_over_here: float
    """Goodput of the other mode over that of the present one."""

    def __str__(self) -> str:
        return (
            f"decode batch {self.size}, accept length {self.accept:.2f}: speculative"
            f" {self.accept * self.size / self.speculative:.0f} tokens/s, plain {self.size / self.plain:.0f}"
        )
