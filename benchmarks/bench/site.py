"""What every measurement needs at hand, and what their rows have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.client import Answer
from bench.dial import Dial
from bench.servers import RunningServer

Row = dict[str, Any]


@dataclass
class Site:
    """One server under measurement."""

    server: RunningServer
    """Ready, and the only busy one on the GPU."""
    model: Path
    """Folder of the served model."""
    vocab_size: int
    settle_seconds: float
    """How long the server's last log lines take to be written."""
    answers: Path
    """Folder for the reference's answers."""
    trace: Path | None
    """The load trace."""
    dial: Dial | None
    accept_length: float | None
    """The plan's."""

    def prepare(self, accept_length: float | None = None, pin: str = "") -> None:
        """An empty prefix cache, the accept length to simulate, and the mode to operate in."""
        length = accept_length if accept_length is not None else self.accept_length
        if self.dial is not None and length is not None:
            self.dial.turn(length)
        if self.server.switch_state() is not None:
            self.server.pin(pin or "configured")
        self.server.flush_cache()


def switched(before: Row | None, after: Row | None) -> Row:
    """What specswitch did between two of its states: switches, and the share of decode steps in PLAIN."""
    if before is None or after is None:
        return {}
    steps = {mode: count - before["steps"][mode] for mode, count in after["steps"].items()}
    return {
        "mode": after["mode"],
        "transitions": after["transitions"] - before["transitions"],
        "plain_share": round(steps["PLAIN"] / max(1, sum(steps.values())), 3),
        "fault": after["fault"],
    }


def first_error(answers: Sequence[Answer]) -> str | None:
    return next((answer.error for answer in answers if answer.error is not None), None)


def quantile(values: Sequence[float], share: float) -> float | None:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None


def ms(seconds: float | None) -> float | None:
    return None if seconds is None or seconds == float("inf") else round(seconds * 1e3, 2)
