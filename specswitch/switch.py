"""One Switch per scheduler process: what it looks like -> should it change -> may it -> make it so."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from specswitch.config import OperatingMode, SwitchConfig
from specswitch.engine.base import Engine, PlainEntry, SpeculativeEntry
from specswitch.engine.reentry import ReentryRecord
from specswitch.machine import SwitchMachine, Transition
from specswitch.policy import Policy, Steering, Wish, boundaries_of
from specswitch.policy.base import CATCH_UP_ALL
from specswitch.records import StepCounts, TransitionRecord
from specswitch.signals import LoadSample, Mode

_SPECULATIVE, _DRAINING, _PLAIN = Mode.SPECULATIVE, Mode.DRAINING, Mode.PLAIN  # looking them up costs a turn too much

_NEVER = sys.maxsize


class Observer(Protocol):
    """Hears what happened; decides nothing."""

    def transition(self, record: TransitionRecord) -> None: ...

    def reentry(self, record: ReentryRecord) -> None: ...

    def recommendation(self, wish: Wish, sample: LoadSample) -> None: ...

    def pinned(self, mode: OperatingMode | None) -> None: ...

    def fault(self, error: BaseException, doing: str) -> None: ...

    def status(self, load: LoadSample, steps: StepCounts) -> dict[str, Any]: ...


class Switch:
    """Listens to an engine's turns and drives the machine by a policy's wishes.

    A fault in here never reaches the scheduler: it is reported once, no further switch is attempted, and the
    server goes on in the mode it is in (out of DRAINING: back to SPECULATIVE, where nothing was converted).
    """

    def __init__(
        self,
        engine: Engine,
        policy: Policy,
        config: SwitchConfig,
        observer: Observer,
        clock: Callable[[], float] = time.perf_counter,
        steering: Steering | None = None,
    ) -> None:
        """
        Args:
            engine: switches the scheduler.
            policy: decides, or follows the rank that does.
            config: what the operator decided before the start.
            observer: hears what happened.
            clock: seconds.
            steering: shared with a policy that follows pins.
        """
        self.engine = engine
        self.policy = policy
        self.machine = SwitchMachine()
        self.draft_kv = config.draft_kv
        self.faulted = False
        """Whether a fault has ended the switching."""
        self._config = config
        self._observer = observer
        self._clock = clock
        self._decode_steps = self._plain_steps = 0
        self._entered_at = 0
        """The decode step at which SPECULATIVE or PLAIN was last entered."""
        self._since = 0
        """The same, or if that came later, at which ``observe`` would have entered it."""
        self._recommended = Mode.SPECULATIVE
        self._asked_for: Wish | None = None
        """The wish under way: a drain or a return that has yet to complete."""
        self._asked_at = 0.0
        self._sample = LoadSample(Mode.SPECULATIVE, 0, 0, 0, 0, None)
        """The latest; an idle server before the first turn."""
        self._steering = steering or Steering(config.mode)
        self._settled_until = 0
        """The decode step up to which the policy has nothing new to say of an unchanged batch."""
        self._settled_by: Policy | None = None
        self._settled_for = 0
        """What the policy was asked about: see ``Engine.batch_version``."""

    # What the engine tells

    def on_turn(self) -> None:
        if self.faulted:
            return
        try:
            if (
                self._decode_steps < self._settled_until
                and self.policy is self._settled_by
                and self.engine.batch_version() == self._settled_for
            ):
                return
            self._take_turn()
        except Exception as error:
            self.on_fault("deciding on a switch", error)

    def on_decode_step(self, mode: Mode) -> None:
        self._decode_steps += 1
        if mode is _PLAIN:
            self._plain_steps += 1

    def on_returned(self, entry: SpeculativeEntry) -> None:
        try:
            reason = self._asked_for.reason if self._asked_for is not None else "returned"
            self._take(self.machine.return_to_speculative, Transition.RETURN, reason, entry)
        except Exception as error:
            self.on_fault("reporting a return", error)

    def on_reentry(self, record: ReentryRecord) -> None:
        with suppress(Exception):
            self._observer.reentry(record)

    def on_fault(self, doing: str, error: BaseException) -> None:
        if self.faulted:
            return
        self.faulted = True
        self.reconsider()
        with suppress(Exception):
            self._observer.fault(error, doing)
        with suppress(Exception):
            self.engine.end_look()
        with suppress(Exception):
            if self.machine.mode is Mode.DRAINING:
                self.engine.cancel_drain()
                self._take(self.machine.cancel_drain, Transition.CANCEL_DRAIN, "a fault ended the switching")
            elif self._asked_for is not None:
                self.engine.cancel_return()

    def reconsider(self) -> None:
        """Ask the policy in the next turn, whatever it said of this load: it has learnt of something else."""
        self._settled_until = 0

    def status(self) -> dict[str, Any]:
        if self._decode_steps < self._settled_until:
            self._sample = self.engine.sample(self._sample.mode, self._decode_steps, self._decode_steps - self._since)
        steps = self._decode_steps
        counts = StepCounts(steps - self._plain_steps, self._plain_steps, in_mode=steps - self._entered_at)
        return self._observer.status(self._sample, counts)

    # What an operator says

    def pin(self, mode: OperatingMode | None) -> None:
        """Operate in ``mode`` from the next turn on, None as configured; on all ranks before the same turn."""
        self._steering.pin(mode)
        self.reconsider()
        self._recommended = Mode.SPECULATIVE
        self._observer.pinned(mode)

    # One turn

    def _take_turn(self) -> None:
        self._settled_until = 0
        if self._steering.mode != "observe":
            self._act(self.policy)
            if self._asked_for is None and self.machine.mode is self._sample.mode is not _DRAINING:
                self._settle()
        elif self.machine.mode is _SPECULATIVE and self._sample.look is None:
            self._observe()
        else:
            self._act(_as_without_switching)

    def _settle(self) -> None:
        """Leave the policy alone until its answer may be another one: the batch has changed, or enough steps passed."""
        boundaries = boundaries_of(self.policy)
        if boundaries is not None:
            ahead = (steps for steps in boundaries if steps > self._sample.steps_in_mode)
            self._settled_until = self._since + min(ahead, default=_NEVER)
            self._settled_by, self._settled_for = self.policy, self.engine.batch_version()

    def _act(self, policy: Policy) -> None:
        mode = self.machine.mode
        self._sample = self.engine.sample(mode, self._decode_steps, self._decode_steps - self._since)
        wish = policy(self._sample)
        if mode is _DRAINING:
            self._drain_on(wish)
        elif wish is None:
            return
        elif mode is _PLAIN:
            self._leave_plain(wish)
        elif wish.mode is _PLAIN:
            self._ask(wish)
            self.engine.start_drain()
            self._take(self.machine.begin_drain, Transition.BEGIN_DRAIN, wish.reason)
            self._enter_plain_if_drained()

    def _drain_on(self, wish: Wish | None) -> None:
        if wish is None or wish.mode is _PLAIN:
            self._enter_plain_if_drained()
        else:
            self._ask(wish)
            self.engine.cancel_drain()
            self._take(self.machine.cancel_drain, Transition.CANCEL_DRAIN, wish.reason)

    def _leave_plain(self, wish: Wish) -> None:
        """Ask for a return, or give one up."""
        if wish.mode is _SPECULATIVE:
            if self._asked_for is not None and wish.sampled != self._asked_for.sampled:
                self._give_up_return()  # for one of others
            if self._asked_for is None:
                self._ask(wish)
                self.engine.request_return(self.draft_kv, wish.sampled)
        else:
            self._give_up_return()

    def _give_up_return(self) -> None:
        if self._asked_for is not None and self.engine.cancel_return():
            self._asked_for = None

    def _enter_plain_if_drained(self) -> None:
        if self.engine.drained():
            entry = self.engine.enter_plain()
            reason = self._asked_for.reason if self._asked_for is not None else "drained"
            self._take(self.machine.enter_plain, Transition.ENTER_PLAIN, reason, entry)

    def _observe(self) -> None:
        self._sample = self.engine.sample(self._recommended, self._decode_steps, self._decode_steps - self._since)
        wish = self.policy(self._sample)
        if self._sample.look is not None:
            return  # which the next turn ends
        if wish is not None and wish.mode is not self._recommended:
            self._recommended = wish.mode
            self._since = self._decode_steps
            self._observer.recommendation(wish, self._sample)
        else:
            self._settle()

    def _ask(self, wish: Wish) -> None:
        self._asked_for = wish
        self._asked_at = self._clock()

    def _take(
        self,
        take: Callable[[str], None],
        transition: Transition,
        reason: str,
        entry: PlainEntry | SpeculativeEntry | None = None,
    ) -> None:
        take(reason)
        self.reconsider()
        if transition is not Transition.BEGIN_DRAIN:
            self._entered_at = self._since = self._decode_steps
            self._asked_for = None
        self._observer.transition(
            TransitionRecord(
                transition=transition,
                reason=reason,
                batch_size=self._sample.decode_batch_size,
                queue_length=self._sample.queue_length,
                accept_length=self._sample.accept_length,
                step=self._decode_steps,
                duration_ms=round((self._clock() - self._asked_at) * 1e3, 3),
                slots_given_back=entry.slots_given_back if isinstance(entry, PlainEntry) else 0,
                tokens_caught_up=entry.tokens_caught_up if isinstance(entry, SpeculativeEntry) else 0,
            )
        )


def _as_without_switching(sample: LoadSample) -> Wish:
    return Wish(Mode.SPECULATIVE, "pinned to observe") if sample.look is None else CATCH_UP_ALL
