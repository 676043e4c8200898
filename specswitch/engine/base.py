"""What a Switch may ask of an engine, whatever the SGLang release below it.

An engine is the one room that knows a release's scheduler, batches and workers.  The Switch owns
*when*; the engine owns *how*.  A turn runs like this::

    scheduler turn begins
      -> TurnListener.on_turn()            the Switch samples, decides, and calls the engine:
           start_drain / cancel_drain / enter_plain / request_return / cancel_return
      -> SGLang picks and launches a batch the engine's hooks keep to the mode
      -> TurnListener.on_decode_step()     once per processed decode result
      -> TurnListener.on_returned()        inside the turn that rebuilt the batch for speculation
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from specswitch.engine.reentry import ReentryRecord
from specswitch.signals import LoadSample, Mode

DraftKV = Literal["catch-up", "cold"]


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Which speculative path is really running; logged at start as ``specswitch.active``."""

    release: str
    """SGLang release, for example ``0.5.12.post1``."""
    path: Literal["v1", "v2"]
    """``v1``: non-overlap ``EAGLEWorker`` family; ``v2``: ``EAGLEWorkerV2`` family."""
    worker: str
    """Class name of SGLang's speculative worker."""
    overlap: bool
    algorithm: str
    """SGLang's name: EAGLE, EAGLE3, STANDALONE, NGRAM..."""
    topk: int | None
    num_steps: int | None
    num_draft_tokens: int
    page_size: int


@dataclass(frozen=True, slots=True)
class PlainEntry:
    """What entering PLAIN did."""

    requests: int
    slots_given_back: int
    """KV slots that had been allocated ahead for draft tokens and went back to the pool."""


@dataclass(frozen=True, slots=True)
class SpeculativeEntry:
    """What returning to SPECULATIVE did."""

    requests: int
    tokens_caught_up: int
    """Tokens whose draft KV was written for it, by its last forward and by those before (0 when cold)."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What was run at start."""

    forwards: int
    most_tokens: int
    """Of one forward."""
    seconds: float


class TurnListener(Protocol):
    """What the engine tells its Switch.  Implementations must not raise."""

    def on_turn(self) -> None:
        """A scheduler turn begins; nothing of it has been chosen yet."""

    def on_decode_step(self, mode: Mode) -> None:
        """The result of a batch was processed that was decoded in ``mode``, SPECULATIVE or PLAIN."""

    def on_returned(self, entry: SpeculativeEntry) -> None:
        """The running batch is in speculative form again; the return asked for is complete."""

    def on_reentry(self, record: ReentryRecord) -> None:
        """The first verify steps after a return are over, by their number or because PLAIN is entered again."""

    def on_fault(self, doing: str, error: BaseException) -> None:
        """The engine caught a fault of its own; the scheduler goes on in the form it is in."""

    def status(self) -> dict[str, Any]:
        """JSON-able state for ``/server_info``."""


class Engine(Protocol):
    """One release line's way to switch a live scheduler."""

    facts: EngineFacts

    def attach(self, listener: TurnListener) -> None:
        """Hook into the scheduler.  Until ``start_drain`` the scheduler behaves as without hooks."""

    def release(self) -> None:
        """Take every hook out again.  Only legal in speculative form."""

    def sample(self, mode: Mode, decode_step: int, steps_in_mode: int) -> LoadSample:
        """Read the scheduler; no device synchronisation."""

    def batch_version(self) -> int:
        """A number that stays the same while the decode batch holds the same unfinished requests."""

    def start_drain(self) -> None:
        """Launch no new decode batch until ``enter_plain`` or ``cancel_drain``; prefill goes on."""

    def cancel_drain(self) -> None:
        """Forget ``start_drain``; nothing had been converted."""

    def drained(self) -> bool:
        """Whether every launched decode result has been processed."""

    def enter_plain(self) -> PlainEntry:
        """Rebuild the running batch for plain decode.  Only when ``drained()``.

        All that can fail happens before the first change, so that an exception leaves the batch in
        speculative form.
        """

    def request_return(self, draft_kv: DraftKV, sampled: int | None = None) -> None:
        """From now on rebuild the batch for speculation at the first turn that can; then ``on_returned``.

        With ``sampled`` only so many requests are caught up, those that have missed least.  The others are left out
        until PLAIN is entered again: they speculate without what they have missed, and it stays to be caught up.

        That turn may come later: a prefill goes first, an in-flight result must land (engines that
        need it), and the pool must have room for the speculative reserve of every request.
        """

    def end_look(self) -> None:
        """From now on nobody counts as left out, be it because PLAIN is entered or because no switch will come."""

    def cancel_return(self) -> bool:
        """Forget ``request_return``; False if the batch has been rebuilt already: then ``on_returned`` follows."""


class LiveEngine(Engine, Protocol):
    """An engine whose forwards take real time, and other times on every rank."""

    def rehearse(self, report: Callable[[Rehearsal | Exception], None]) -> None:
        """Before the first turn run once what a return may come to run, where that makes anything quicker, and report
        how it went; to be called once attached."""

    def waits(self) -> tuple[tuple[float, float, int], ...]:
        """How long requests wait for the forwards of a return, as measured on this rank, for each kind of forward: in
        milliseconds the floor and what each token adds, and the tokens up to which that is known."""

    def use_waits(self, waits: tuple[tuple[float, float, int], ...]) -> None:
        """Put what some rank's :meth:`waits` told in force here."""
