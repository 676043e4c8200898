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
    at_once: bool = False
    """Whether no dwell need be kept: the server is empty or has just been, so that there is nothing to flap."""
    sampled: int | None = None
    """How many requests a return to SPECULATIVE is to catch up, for a look at these; None: whoever is worth it."""


CATCH_UP_ALL = Wish(Mode.PLAIN, "the requests that a look has left out are to be caught up", at_once=True)
"""What ends a look at a sample that nobody waits for any more: from PLAIN the whole batch can return."""

Policy = Callable[[LoadSample], Wish | None]
"""None: nothing speaks against going on as before.

A policy reads what is equal on every rank (never ``sample.local``), keeps no clock and has no effects,
so that every tensor-parallel rank reaches the same answer.

One that reads nothing but the mode, the size of the decode batch and its sampling features, and of the steps in the
mode whether they have reached a limit, says so by an attribute ``boundaries``: these limits, a set of steps.  It then
need not be asked in every turn.
"""


def boundaries_of(policy: Policy) -> frozenset[int] | None:
    """The steps in a mode at which the answer to an unchanged load may change; None: it may in every turn."""
    boundaries: frozenset[int] | None = getattr(policy, "boundaries", None)
    return boundaries
