"""What ``/server_info`` shows of one scheduler under ``internal_states[i]["specswitch"]``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from specswitch.config import OperatingMode, SwitchConfig
from specswitch.engine.admission import AdmissionFacts
from specswitch.engine.base import EngineFacts
from specswitch.machine import Transition
from specswitch.profile import ProfileKey
from specswitch.records import StepCounts, TransitionRecord, rounded
from specswitch.signals import LoadSample, Mode


class Status:
    """Counts and keeps what it is told; read and written by the scheduler's own thread alone."""

    def __init__(
        self,
        facts: EngineFacts,
        config: SwitchConfig,
        key: ProfileKey | None = None,
        admission: AdmissionFacts | None = None,
        graph_sizes: Sequence[int] = (),
    ) -> None:
        """
        Args:
            facts: what is really running.
            config: what the operator decided.
            key: what a profile for this server is made for; the rank that decides has one.
            admission: how many requests may run.
            graph_sizes: batch sizes with CUDA graphs for plain decode.
        """
        self._key = None if key is None else msgspec.to_builtins(key)
        self._admission = None if admission is None else asdict(admission)
        self._graph_sizes = list(graph_sizes)
        self._profile: Path | None = None
        self._facts = facts
        self._config = config
        self._mode = Mode.SPECULATIVE
        self._taken = Counter[Transition]()
        self._last: TransitionRecord | None = None
        self._pinned: OperatingMode | None = None
        self._recommended = Mode.SPECULATIVE if config.mode == "observe" else None
        self._fault: str | None = None

    def transition(self, record: TransitionRecord) -> None:
        self._mode = record.transition.dest
        self._taken[record.transition] += 1
        self._last = record

    def pin(self, mode: OperatingMode | None) -> None:
        """An operator has pinned how the server operates, or (None) taken the pin off."""
        self._pinned = mode
        self._recommended = Mode.SPECULATIVE if (mode or self._config.mode) == "observe" else None

    def use_profile(self, path: Path | None) -> None:
        """Goodput goes by this file."""
        self._profile = path

    def recommend(self, mode: Mode) -> None:
        """Observe mode would now be in ``mode``."""
        self._recommended = mode

    def fault(self, text: str) -> None:
        """Switching has stopped; the first fault is kept."""
        self._fault = self._fault or text

    def as_dict(self, load: LoadSample, steps: StepCounts) -> dict[str, Any]:
        """JSON-able; ``load`` is the latest sample."""
        return {
            "mode": self._mode.value,
            "batch_size": load.decode_batch_size,
            "queue_length": load.queue_length,
            "accept_length": rounded(load.accept_length),
            "context_tokens": load.batch.context_tokens,
            "missed_tokens": load.batch.missed_tokens,
            **asdict(self._facts),
            "transitions": self._taken.total(),
            "transitions_by_kind": {kind.name: self._taken[kind] for kind in Transition},
            "steps": {Mode.SPECULATIVE.value: steps.speculative, Mode.PLAIN.value: steps.plain},
            "steps_in_mode": steps.in_mode,
            "last_transition": self._last.as_dict() if self._last else None,
            "pinned": self._pinned,
            "recommended_mode": self._recommended.value if self._recommended else None,
            "key": self._key,
            "profile": None if self._profile is None else str(self._profile),
            "admission": self._admission,
            "graph_sizes": self._graph_sizes,
            "fault": self._fault,
            "config": self._config.as_dict(),
        }
