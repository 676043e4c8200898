"""The events that specswitch wrote into a server's log (``--specswitch-log-format json``)."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any


def read_events(log: Path) -> list[dict[str, Any]]:
    """Every ``specswitch.*`` event in the file, in order; lines that SGLang wrote are passed over."""
    events = []
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if not line.startswith("{"):
            continue
        try:
            event = json.loads(line)
        except ValueError:  # another line that happens to begin so, or one still being written
            continue
        if isinstance(event, dict) and str(event.get("event", "")).startswith("specswitch."):
            events.append(event)
    return events


def seconds_between(start: datetime, event: dict[str, Any]) -> float:
    """When the event happened, in seconds after ``start`` (which knows its time zone)."""
    return (datetime.fromisoformat(event["timestamp"].replace("Z", "+00:00")) - start).total_seconds()
