"""How far to trust what was last seen of a mode that has not run since."""

from __future__ import annotations

_KEPT = 0.9
"""Of what earlier changes have taught, at each new one."""


class Unseen:
    """Changes come at random, about as often as they have come so far.

    Not having looked for ``u`` steps, after ``n`` changes in ``t`` steps, nothing has changed with a probability of
    ``(t / (t + u)) ** n``: what is left of an exponential law whose rate is known no better than that.  Whatever
    holds good for long is so expected to hold on; and where changes have come again and again, the next one is
    expected after as many steps.
    """

    def __init__(self, memory_steps: float) -> None:
        """``memory_steps``: after how many steps one change is expected before anything is known."""
        self.steps = 0
        """Decode steps since the mode last ran."""
        self._away = 0
        """Decode steps since it last ran other than to be looked at."""
        self._held = float(memory_steps)
        self._changes = 1.0

    def passed(self, steps: int) -> None:
        """So many decode steps were run in the other mode."""
        self.steps += steps
        self._away += steps

    def looked(self) -> None:
        """The mode runs, to be looked at."""
        self.steps = 0

    def settled(self) -> None:
        """The mode runs for its own sake."""
        self.steps = self._away = 0

    def changed(self) -> None:
        """A look has found a change worth staying for."""
        self._held = _KEPT * (self._held + self._away)
        self._changes = _KEPT * self._changes + 1.0

    @property
    def trust(self) -> float:
        """0 to 1: the probability that what was last seen still holds."""
        held = self._held + self._away - self.steps
        return float((held / (held + self.steps)) ** self._changes)
