"""One load under one way of deciding, and several to be compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from specswitch.config import OperatingMode, SwitchConfig
from specswitch.engine.reentry import ReentryRecord
from specswitch.machine import Transition
from specswitch.policy import Wish, policy_for
from specswitch.profile import Profile
from specswitch.records import StepCounts, TransitionRecord
from specswitch.replay.load import Load
from specswitch.replay.oracles import LookingOracle, Oracle
from specswitch.replay.server import Limits, Noise, SimulatedServer
from specswitch.signals import LoadSample, Mode
from specswitch.switch import Switch

CONTENDERS = ("goodput", "watermark", "always", "never", "oracle")
_SLOTS = 200


@dataclass
class Outcome:
    """What one contender made of a load."""

    contender: str
    tokens: float
    """Put out by the end of the load."""
    seconds: float
    switches: int
    """Changes of how decode steps are run."""
    time_per_token: float
    """Mean seconds that a running request waits for one of its tokens; prefills and switches of others included."""
    plain_share: float
    """Share of decode steps that were plain."""
    reasons: list[str]
    """Of the switches, in order."""
    timeline: list[dict[str, float]] = field(repr=False)
    """Per slot of time: ``seconds`` at its end, ``tokens_per_second``, ``batch_size`` and ``plain`` (0 or 1) there."""

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


def replay(
    contender: str,
    load: Callable[[], Load],
    truth: Profile,
    config: SwitchConfig | None = None,
    *,
    believed: Profile | None = None,
    limits: Limits | None = None,
    noise: Noise | None = None,
    seed: int = 0,
    look_every: float | None = None,
) -> Outcome:
    """Serve a fresh ``load`` on the server that ``truth`` describes, decided as ``contender`` says.

    Args:
        contender: one of :data:`CONTENDERS`.
        load: makes it.
        truth: what the server is like.
        config: what the policies are told.
        believed: the profile that the goodput policy goes by, where it is not the truth.
        limits: what bounds the batch.
        noise: how far the server strays from ``truth``.
        seed: of the noise.
        look_every: the seconds after which the oracle looks, if it has to draft to know the accept length.
    """
    server = SimulatedServer(truth, load(), limits or Limits(), noise or Noise(), seed)
    record = _Record(server)
    config = config or SwitchConfig()
    if contender != "oracle":
        server.attach(_switch(server, record, contender, config, believed or truth))
    elif look_every is None:
        server.attach(Oracle(server, record.changed))
    else:
        server.attach(LookingOracle(server, record.changed, look_every, config.dwell_steps))
    while server.now < server.load.duration:
        server.turn()
        record.note()
    record.finish()
    steps = sum(server.steps.values())
    return Outcome(
        contender=contender,
        tokens=server.tokens,
        seconds=server.now,
        switches=len(record.reasons),
        time_per_token=server.request_seconds / max(server.decode_tokens, 1.0),
        plain_share=server.steps[Mode.PLAIN] / max(steps, 1),
        reasons=record.reasons,
        timeline=record.timeline,
    )


def compare(
    load: Callable[[], Load],
    truth: Profile,
    config: SwitchConfig | None = None,
    contenders: Sequence[str] = CONTENDERS,
    **more: Any,
) -> dict[str, Outcome]:
    """:func:`replay` for each contender."""
    return {contender: replay(contender, load, truth, config, **more) for contender in contenders}


def _switch(
    server: SimulatedServer, record: _Record, contender: str, config: SwitchConfig, believed: Profile
) -> Switch:
    changes: dict[str, dict[str, Any]] = {
        "goodput": {"mode": "auto", "policy": "goodput", "profile": "given"},
        "watermark": {"mode": "auto", "policy": "watermark"},
        "always": {"mode": "speculative"},
        "never": {"mode": "plain"},
    }
    config = msgspec.structs.replace(config, **changes[contender])
    return Switch(server, policy_for(config, believed), config, record, clock=lambda: server.now)


class _Record:
    """The Switch's observer; keeps what an outcome shows."""

    def __init__(self, server: SimulatedServer) -> None:
        self._server = server
        self._slot = server.load.duration / _SLOTS
        self._slot_ends = self._slot
        self._slot_starts_at = (0.0, 0.0)
        self.reasons: list[str] = []
        self.timeline: list[dict[str, float]] = []

    def transition(self, record: TransitionRecord) -> None:
        if record.transition in (Transition.ENTER_PLAIN, Transition.RETURN):
            self.changed(record.reason)

    def changed(self, reason: str) -> None:
        """The way decode steps are run has changed."""
        self.reasons.append(f"{self._server.now:.2f} s: {reason}")

    def reentry(self, record: ReentryRecord) -> None:
        """Never called: what is accepted does not depend on the draft's KV here."""

    def recommendation(self, wish: Wish, sample: LoadSample) -> None:
        """Never called: nothing is only observed here."""

    def pinned(self, mode: OperatingMode | None) -> None:
        """Never called: no operator stands by."""

    def fault(self, error: BaseException, doing: str) -> None:
        raise error

    def status(self, load: LoadSample, steps: StepCounts) -> dict[str, Any]:
        return {}

    def note(self) -> None:
        """A turn is over."""
        if self._server.now >= self._slot_ends:
            self.finish()
            self._slot_ends = self._server.now + self._slot

    def finish(self) -> None:
        """Close the present slot."""
        server = self._server
        since, tokens = self._slot_starts_at
        if server.now - since > self._slot / 4:  # what is left at the end may be too short to tell anything
            self.timeline.append(
                {
                    "seconds": server.now,
                    "tokens_per_second": (server.tokens - tokens) / (server.now - since),
                    "batch_size": float(server.batch_size),
                    "plain": float(server.mode is Mode.PLAIN),
                    "accept_length": server.load.accept_length(server.now),
                }
            )
        self._slot_starts_at = (server.now, server.tokens)
