"""Watch a server that switches: its state once a second, and the events in its log.

``python examples/watch_server.py http://localhost:30000 --log server.log`` needs nothing but Python.  The log is what
the server wrote with ``--specswitch-log-format json``, SGLang's own lines included.  Ctrl-C ends it, and so does the
end of the server.
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO


def status(url: str) -> dict[str, Any]:
    """What specswitch says of the first scheduler (with data parallelism there are more)."""
    with urllib.request.urlopen(f"{url}/server_info", timeout=30) as response:
        shown: dict[str, Any] = json.load(response)["internal_states"][0]["specswitch"]
        return shown


def new_events(log: TextIO) -> Iterator[dict[str, Any]]:
    """The specswitch events that were written since the last call."""
    for line in log:
        if line.startswith("{") and '"specswitch.' in line:
            yield json.loads(line)


def show(status: dict[str, Any]) -> None:
    accept = "none yet" if status["accept_length"] is None else f"{status['accept_length']:.2f}"
    print(
        f"{status['mode']:<11}  batch {status['batch_size']:>3}  queue {status['queue_length']:>3}"
        f"  accept length {accept}  steps {status['steps']}  transitions {status['transitions']}",
        flush=True,
    )


def show_event(event: dict[str, Any]) -> None:
    if event["event"] == "specswitch.transition":
        print(f"  {event['timestamp']}  {event['from']} -> {event['to']}: {event['reason']}, {event['duration_ms']} ms")
    elif event["event"] == "specswitch.active":
        print(f"  {event['timestamp']}  {event['worker']}, overlap {event['overlap']}, topk {event['topk']}")
    else:
        print(f"  {event}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Watch a server that switches.")
    parser.add_argument("url", help="where the server listens, for example http://localhost:30000")
    parser.add_argument("--log", type=Path, help="the file its output goes to")
    parser.add_argument("--times", type=int, help="how often to look; without it, until Ctrl-C")
    options = parser.parse_args()
    log = options.log.open(encoding="utf-8", errors="replace") if options.log else None
    looked = 0
    try:
        while options.times is None or looked < options.times:
            for event in new_events(log) if log else ():
                show_event(event)
            show(status(options.url))
            looked += 1
            time.sleep(1)
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
