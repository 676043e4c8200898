"""References that no policy could be: they know what a server is really like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specswitch.costs import advantage
from specswitch.engine.base import SpeculativeEntry
from specswitch.engine.reentry import ReentryRecord
from specswitch.replay.server import SimulatedServer
from specswitch.signals import Mode


class Oracle:
    """Knows the true step times and the true accept length, and changes the mode before any step, at no cost.

    No real server can reach it: it pays neither drain nor catch-up, needs no time to notice, and knows the accept
    length while nothing is drafted.
    """

    def __init__(self, server: SimulatedServer, changed: Callable[[str], None]) -> None:
        """
        Args:
            server: what it decides for.
            changed: told when the mode has changed.
        """
        self._server = server
        self._changed = changed

    def on_turn(self) -> None:
        server = self._server
        if server.batch_size:
            best = self._best(self._true_accept())
            if best is not server.mode:
                server.switch_at_no_cost(best)
                self._changed("")

    def _true_accept(self) -> float:
        server = self._server
        return min(server.load.accept_length(server.now), server.truth.longest_accept_length)

    def _best(self, accept: float) -> Mode:
        server = self._server
        size, context = server.batch_size, server.context_tokens
        plain, speculative = server.plain.seconds(size, context), server.speculative.seconds(size, context)
        return Mode.SPECULATIVE if advantage(accept, plain, speculative) > 1.0 else Mode.PLAIN

    def on_decode_step(self, mode: Mode) -> None:
        """Its own choice."""

    def on_returned(self, entry: SpeculativeEntry) -> None:
        """It asks for no return."""

    def on_reentry(self, record: ReentryRecord) -> None:
        """Never called: what is accepted does not depend on the draft's KV here."""

    def on_fault(self, doing: str, error: BaseException) -> None:
        raise error

    def status(self) -> dict[str, Any]:
        return {}


class LookingOracle(Oracle):
    """The oracle, but that it has to draft to know the accept length.

    While it decodes plainly it goes by the length that it last knew, and every ``look_every`` seconds it looks: it
    pays for a return, and stays for a dwell.  What it can see, batch and context, it still follows at no cost, and
    while speculating it knows of a change at once.
    """

    def __init__(
        self,
        server: SimulatedServer,
        changed: Callable[[str], None],
        look_every: float,
        dwell_steps: int,
    ) -> None:
        super().__init__(server, changed)
        self._look_every = look_every
        self._dwell_steps = dwell_steps
        self._to_stay = 0
        self._known = self._true_accept()
        self._known_at = 0.0

    def on_turn(self) -> None:
        server = self._server
        if not server.batch_size:
            return
        if server.mode is Mode.SPECULATIVE:
            self._known, self._known_at = self._true_accept(), server.now
        if self._to_stay > 0:
            return
        best = self._best(self._known)
        if best is not server.mode:
            server.switch_at_no_cost(best)
            self._changed("")
        elif server.mode is Mode.PLAIN and server.now - self._known_at >= self._look_every:
            server.request_return("catch-up")

    def on_decode_step(self, mode: Mode) -> None:
        self._to_stay -= 1

    def on_returned(self, entry: SpeculativeEntry) -> None:
        self._to_stay = self._dwell_steps
        self._changed("")
