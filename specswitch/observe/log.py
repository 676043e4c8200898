"""The ``specswitch.*`` log events.

They go to stderr through a structlog logger of its own.  Neither the standard library's logging, which
SGLang configures, nor structlog's global configuration is touched.
"""

from __future__ import annotations

import sys
import traceback
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NoReturn

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from specswitch.config import OperatingMode, SwitchConfig
from specswitch.engine.admission import AdmissionFacts
from specswitch.engine.base import EngineFacts, Rehearsal
from specswitch.engine.plain_graphs import PlainGraphFacts
from specswitch.engine.reentry import ReentryRecord
from specswitch.policy import Wish
from specswitch.records import TransitionRecord, rounded
from specswitch.signals import LoadSample


def get_logger(format: Literal["console", "json"], rank: int) -> FilteringBoundLogger:
    """A logger to stderr on rank 0, a silent one on every other rank.

    ``json`` writes one object per line, with ``timestamp`` (ISO 8601, UTC), ``level``, ``event`` and the fields.
    """
    logger: FilteringBoundLogger = structlog.wrap_logger(
        structlog.WriteLogger(sys.stderr),
        processors=_to_stderr(format) if rank == 0 else [_drop],
        wrapper_class=structlog.make_filtering_bound_logger("info"),
        context_class=dict,
        cache_logger_on_first_use=True,
    )
    return logger


def _to_stderr(format: Literal["console", "json"]) -> list[Processor]:
    stamps: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if format == "json":
        return [*stamps, _head_first, structlog.processors.JSONRenderer()]
    return [*stamps, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), sort_keys=False)]


def _head_first(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    return {key: event[key] for key in ("timestamp", "level", "event")} | dict(event)


def _drop(logger: WrappedLogger, method: str, event: EventDict) -> NoReturn:
    raise structlog.DropEvent


class EventLog:
    """One method per event; ``docs/log.md`` explains each field.  A line that cannot be written is dropped."""

    def __init__(self, logger: FilteringBoundLogger) -> None:
        self._logger = logger
        self._faulted = False

    def active(self, facts: EngineFacts, config: SwitchConfig) -> None:
        """``specswitch.active``: what is really running, once at start."""
        self._write("info", "specswitch.active", **asdict(facts), config=config.as_dict())

    def admission(self, facts: AdmissionFacts) -> None:
        """``specswitch.admission``: how many requests may run at once, once at start."""
        self._write("info", "specswitch.admission", **asdict(facts))

    def plain_graphs(self, facts: PlainGraphFacts) -> None:
        """``specswitch.plain_graphs``: the CUDA graphs for PLAIN and what they cost, once at start."""
        self._write("info", "specswitch.plain_graphs", **asdict(facts))

    def rehearsal(self, facts: Rehearsal) -> None:
        """``specswitch.rehearsal``: the forwards of a return have been run once, at start."""
        self._write("info", "specswitch.rehearsal", **asdict(facts) | {"seconds": round(facts.seconds, 2)})

    def transition(self, record: TransitionRecord) -> None:
        """``specswitch.transition``: the mode has changed."""
        self._write("info", "specswitch.transition", **record.as_dict())

    def reentry(self, record: ReentryRecord) -> None:
        """``specswitch.reentry``: the accept length right after a return, beside that in the long run."""
        self._write("info", "specswitch.reentry", **record.as_dict())

    def recommendation(self, wish: Wish, sample: LoadSample) -> None:
        """``specswitch.recommendation``: observe mode would have switched now."""
        self._write(
            "info",
            "specswitch.recommendation",
            **{"from": sample.mode.value, "to": wish.mode.value},
            reason=wish.reason,
            batch_size=sample.decode_batch_size,
            queue_length=sample.queue_length,
            accept_length=rounded(sample.accept_length),
            step=sample.decode_step,
        )

    def pinned(self, mode: OperatingMode | None) -> None:
        """``specswitch.pinned``: an operator has pinned how the server operates, or (None) taken the pin off."""
        self._write("info", "specswitch.pinned", mode=mode)

    def profile(self, path: Path | None) -> None:
        """``specswitch.profile``: what goodput goes by from now on."""
        self._write("info", "specswitch.profile", path=None if path is None else str(path))

    def calibration(self, doing: str) -> None:
        """``specswitch.calibration``: how far the server has come in measuring itself."""
        self._write("info", "specswitch.calibration", doing=doing)

    def fault(self, error: BaseException, doing: str) -> None:
        """``specswitch.fault``: switching has stopped, serving goes on.  Later faults are not logged."""
        if self._faulted:
            return
        self._faulted = True
        frames = traceback.extract_tb(error.__traceback__)
        at = f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else None
        self._write("error", "specswitch.fault", error=describe(error), doing=doing, at=at)

    def warning(self, message: str, **fields: Any) -> None:
        """``specswitch.warning``: something an operator should know; switching goes on."""
        self._write("warning", "specswitch.warning", message=message, **fields)

    def _write(self, level: str, event: str, **fields: Any) -> None:
        # A closed or broken stderr loses the line and must not reach the scheduler.
        with suppress(OSError, ValueError):
            getattr(self._logger, level)(event, **fields)


def describe(error: BaseException) -> str:
    """``ValueError: its text`` on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
