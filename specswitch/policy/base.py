"""What a policy is: a function from one sample to the mode it wishes for."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from specswitch.signals import LoadSample, Mode


class Wish(NamedTuple):
    """The mode a policy wants, SPECULATIVE or PLAIN, and why.

    A wish for the mode that the sample is already in says: do not leave it, and give up a return
    that has been asked for.
    """

    mode: Mode
    reason: str
    """A short clause with its numbers, as it appears in the log."""


Policy = Callable[[LoadSample], Wish | None]
"""None: nothing speaks against going on as before.

A policy reads what is equal on every rank (never ``sample.local``), keeps no clock and has no effects,
so that every tensor-parallel rank reaches the same answer.
"""
