"""The log and the status behind the one interface that a Switch knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specswitch.config import OperatingMode
from specswitch.engine.reentry import ReentryRecord
from specswitch.observe.log import EventLog, describe
from specswitch.observe.status import Status
from specswitch.policy import Wish
from specswitch.records import StepCounts, TransitionRecord
from specswitch.signals import LoadSample


class ReportingObserver:
    """Tells the event log and keeps the status for ``/server_info``."""

    def __init__(self, log: EventLog, status: Status) -> None:
        self._log = log
        self._status = status

    def transition(self, record: TransitionRecord) -> None:
        self._status.transition(record)
        self._log.transition(record)

    def reentry(self, record: ReentryRecord) -> None:
        self._log.reentry(record)

    def recommendation(self, wish: Wish, sample: LoadSample) -> None:
        self._status.recommend(wish.mode)
        self._log.recommendation(wish, sample)

    def pinned(self, mode: OperatingMode | None) -> None:
        self._status.pin(mode)
        self._log.pinned(mode)

    def profile(self, path: Path | None) -> None:
        """Goodput goes by this file from now on; None: it has yet to be measured."""
        self._status.use_profile(path)
        self._log.profile(path)

    def fault(self, error: BaseException, doing: str) -> None:
        self._status.fault(f"{doing}: {describe(error)}")
        self._log.fault(error, doing)

    def status(self, load: LoadSample, steps: StepCounts) -> dict[str, Any]:
        return self._status.as_dict(load, steps)
