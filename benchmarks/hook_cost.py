"""What specswitch costs the scheduler's thread per decode step when nothing switches.

    .venvs/0.5.12.post1/bin/python benchmarks/hook_cost.py [--mode eagle-v2] [--steps 1500]

Runs the real scheduler on the CPU engine and adds up the time spent in specswitch's hooks, without what the hooked
SGLang functions take themselves.  Prints one JSON row per mode of the switch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from time import thread_time
from typing import Any

import click

from specswitch import config as configuration
from specswitch.cpu_engine import environment
from specswitch.engine.hooks import InstanceHooks


class Stopwatch:
    """Seconds in hooks, without those of the functions hooked."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def wrap(self, wrapper: Callable[..., Any]) -> Callable[..., Any]:
        """The hook ``wrapper``, timed."""

        def timed(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            inside = 0.0

            def stock(*stock_args: Any, **stock_kwargs: Any) -> Any:
                nonlocal inside
                began = thread_time()
                try:
                    return original(*stock_args, **stock_kwargs)
                finally:
                    inside += thread_time() - began

            began = thread_time()
            try:
                return wrapper(stock, *args, **kwargs)
            finally:
                self.seconds += thread_time() - began - inside

        return timed


@click.command()
@click.option("--mode", default="eagle-v2", show_default=True, help="A mode of the CPU engine.")
@click.option("--steps", default=1500, show_default=True, help="Decode steps to time.")
@click.option("--requests", default=4, show_default=True, help="Requests that run.")
def main(mode: str, steps: int, requests: int) -> None:
    """Print the microseconds per decode step while SPECULATIVE and while PLAIN."""
    environment.activate()
    os.environ[configuration.ENABLE_VARIABLE] = "1"
    from sglang.srt.plugins import load_plugins

    load_plugins()
    from specswitch.cpu_engine.inprocess import InProcessScheduler

    watch = Stopwatch()
    around = InstanceHooks.around

    def timed_around(hooks: InstanceHooks, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        around(hooks, owner, name, watch.wrap(wrapper))

    InstanceHooks.around = timed_around  # type: ignore[method-assign]
    for pinned in ("speculative", "plain"):
        flags = [configuration.ENABLE_FLAG, "--specswitch-mode", pinned]
        with InProcessScheduler(mode, flags=flags, checks=False, max_total_tokens=16384) as server:
            taken, batch = 0, 0
            while taken < steps:
                for index in range(requests):
                    server.add(f"r{batch}-{index}", [7 + index, 9, 11, 13], 400)
                batch += 1
                for _ in range(12):  # prefill, and the switch to the pinned mode
                    server.step()
                watch.seconds, decoded = 0.0, 0
                while not server.idle and taken < steps:
                    decoded += server.step().forward_mode == "DECODE"
                taken += decoded
                print(
                    json.dumps(
                        {
                            "release": server.release.version,
                            "mode": mode,
                            "pinned": pinned,
                            "requests": requests,
                            "decode_steps": decoded,
                            "microseconds_per_step": round(watch.seconds / max(1, decoded) * 1e6, 2),
                        }
                    )
                )


if __name__ == "__main__":
    main()
