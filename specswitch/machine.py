"""Which mode changes are legal: SPECULATIVE, DRAINING, PLAIN and the four ways between them.

The machine knows neither why a change is wanted nor how it is done.  The Switch asks for a transition
once the engine has done its part; listeners hear of it afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum

from transitions import EventData, Machine, MachineError, State

from specswitch.signals import Mode

_logger = logging.getLogger(__name__)
# the library tells of each callback at INFO, the level of SGLang's own log; our own log says it once
logging.getLogger("transitions").setLevel(logging.WARNING)


class Transition(Enum):
    """Every legal transition; any other is impossible."""

    BEGIN_DRAIN = (Mode.SPECULATIVE, Mode.DRAINING, "PLAIN is wanted, no new decode batch is launched")
    CANCEL_DRAIN = (Mode.DRAINING, Mode.SPECULATIVE, "PLAIN is not to be entered, nothing has been converted")
    ENTER_PLAIN = (Mode.DRAINING, Mode.PLAIN, "nothing is in flight, the running batch was rebuilt for plain decode")
    RETURN = (Mode.PLAIN, Mode.SPECULATIVE, "the running batch was rebuilt for speculation")

    source: Mode
    dest: Mode
    meaning: str

    def __init__(self, source: Mode, dest: Mode, meaning: str) -> None:
        self.source = source
        self.dest = dest
        self.meaning = meaning


class Speculative(State):
    """Decode batches go through SGLang's speculative worker.

    Left by BEGIN_DRAIN alone, when the policy wishes for PLAIN.
    """

    def __init__(self) -> None:
        super().__init__(Mode.SPECULATIVE)


class Draining(State):
    """No new decode batch is launched; what is in flight is processed, prefill goes on.

    Left by ENTER_PLAIN once no result is in flight and the running batch has been rebuilt, or by
    CANCEL_DRAIN when the policy no longer wishes for PLAIN or the rebuilding failed.
    """

    def __init__(self) -> None:
        super().__init__(Mode.DRAINING)


class Plain(State):
    """Decode batches are SGLang's ordinary ones: target model, one token per request and step.

    Left by RETURN alone, when the running batch is in speculative form again.
    """

    def __init__(self) -> None:
        super().__init__(Mode.PLAIN)


Listener = Callable[[Transition, Mode, Mode, str], None]
"""Called with the transition, the old mode, the new mode and the reason.  May not ask for a transition."""


class IllegalTransition(RuntimeError):  # noqa: N818 - named for what was asked
    """A transition was asked for that does not leave the current mode; nothing has changed."""

    def __init__(self, current: Mode, asked: Transition) -> None:
        super().__init__(
            f"{asked.name} leads from {asked.source.value} to {asked.dest.value}"
            f" and cannot be taken in {current.value}; the mode is unchanged."
        )
        self.current = current
        self.asked = asked


def _log_listener_error(error: Exception) -> None:
    _logger.error("A listener of the specswitch state machine raised: %r", error)


class SwitchMachine:
    """The mode of one scheduler; starts SPECULATIVE.

    ``mode`` is a plain attribute.  Each method takes one transition, or raises
    :class:`IllegalTransition` and changes nothing.  Listeners are called in order after ``mode`` has
    changed; what they raise is collected and handed to ``on_listener_error`` after the last of them.
    """

    mode: Mode

    def __init__(
        self,
        listeners: Sequence[Listener] = (),
        on_listener_error: Callable[[Exception], None] = _log_listener_error,
    ) -> None:
        self._listeners = tuple(listeners)
        self._on_listener_error = on_listener_error
        # Without a model the library binds no triggers to this object: the four methods below are the only way.
        self._machine = Machine(
            model=None,
            states=[Speculative(), Draining(), Plain()],
            initial=Mode.SPECULATIVE,
            transitions=[{"trigger": t.name, "source": t.source, "dest": t.dest} for t in Transition],
            auto_transitions=False,
            model_attribute="mode",
            send_event=True,
            after_state_change=self._announce,
        )
        self._machine.set_state(Mode.SPECULATIVE, model=self)

    def begin_drain(self, reason: str) -> None:
        """SPECULATIVE -> DRAINING."""
        self._take(Transition.BEGIN_DRAIN, reason)

    def cancel_drain(self, reason: str) -> None:
        """DRAINING -> SPECULATIVE."""
        self._take(Transition.CANCEL_DRAIN, reason)

    def enter_plain(self, reason: str) -> None:
        """DRAINING -> PLAIN."""
        self._take(Transition.ENTER_PLAIN, reason)

    def return_to_speculative(self, reason: str) -> None:
        """PLAIN -> SPECULATIVE."""
        self._take(Transition.RETURN, reason)

    def _take(self, transition: Transition, reason: str) -> None:
        try:
            self._machine.events[transition.name].trigger(self, transition=transition, reason=reason)
        except MachineError:
            raise IllegalTransition(self.mode, transition) from None

    def _announce(self, event: EventData) -> None:
        transition: Transition = event.kwargs["transition"]
        errors: list[Exception] = []
        for listener in self._listeners:
            try:
                listener(transition, transition.source, transition.dest, event.kwargs["reason"])
            except Exception as error:
                errors.append(error)
        for raised in errors:
            self._on_listener_error(raised)


def diagram() -> str:
    """The machine as a Mermaid state diagram, generated from :class:`Transition`."""
    arrows = (f"{t.source.value} --> {t.dest.value}: {t.name}<br/>{t.meaning}" for t in Transition)
    return "\n    ".join(("stateDiagram-v2", f"[*] --> {Mode.SPECULATIVE.value}", *arrows)) + "\n"
