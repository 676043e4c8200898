"""What specswitch costs the scheduler's thread per decode step when nothing switches.

    .venvs/0.5.12.post1/bin/python benchmarks/hook_cost.py [--mode eagle-v2] [--requests 4]

Runs the real scheduler on the CPU engine, pinned to each mode in turn, and prints a JSON row for each.  Two figures,
both in microseconds per decode step, medians, and both of specswitch's own work alone: what the hooked functions of
SGLang take is not in them, nor is what a server without speculation does in the same step as well, though a hook calls
it: its ``FutureMap`` relaying token ids (``sglangs_own``).

- ``microseconds_per_step``: in the running server, by a stopwatch around each hook and each of SGLang's functions in
  it.  What the stopwatch takes itself is measured in every other turn, in which it runs at the same places around
  nothing, and subtracted.  Between two steps the CPU engine computes the model, on the same core, which leaves nothing
  of the hooks in its caches.
- ``warm_microseconds_per_step``: the hooks of one decode step called over and over, between two turns of the same
  server, with what SGLang's functions returned in the place of these functions; less the same calls without hooks.
  So it is where little else runs on the processor between two steps.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import click

from specswitch import config as configuration
from specswitch import profile as profiles
from specswitch.cpu_engine import environment
from specswitch.engine.hooks import InstanceHooks
from specswitch.policy import automatic

ROUNDS = 50
"""Steps that a warm reading covers."""
READINGS = 40


@dataclass
class Call:
    """A hook called in a step."""

    name: str
    hook: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any]
    inside: Any = None
    """What the hooked function returned."""

    def answer(self, *args: Any, **kwargs: Any) -> Any:
        return self.inside


@dataclass
class Stopwatch:
    """Seconds in hooks, without those of the functions hooked."""

    of_nothing: bool = False
    """Whether it takes the time of itself, at the same places."""
    spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """By hooked function, since the last :meth:`take`."""
    calls: list[Call] = field(default_factory=list)
    """Since the last :meth:`take`."""
    _inside: float = 0.0
    """Seconds in SGLang's functions, within the hook that runs."""

    def take(self) -> tuple[dict[str, float], list[Call]]:
        taken = dict(self.spent), self.calls
        self.spent, self.calls = defaultdict(float), []
        return taken

    def hook(self, name: str, wrapper: Callable[..., Any]) -> Callable[..., Any]:
        """The hook ``wrapper`` of a function, timed."""

        def timed(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            call = Call(name, wrapper, args, kwargs)
            self.calls.append(call)
            hooked = original

            def stock(*stock_args: Any, **stock_kwargs: Any) -> Any:
                began = perf_counter()
                try:
                    call.inside = hooked(*stock_args, **stock_kwargs)
                finally:
                    self._inside += perf_counter() - began
                return call.inside

            outer, self._inside = self._inside, 0.0
            if self.of_nothing:
                hooked, run = partial(wrapper, original), stock
            else:
                run = partial(wrapper, stock)
            began = perf_counter()
            try:
                return run(*args, **kwargs)
            finally:
                self.spent[name] += perf_counter() - began - self._inside
                self._inside = outer

        return timed

    def sglangs_own(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of SGLang's that a hook calls, timed as those hooked are."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            if self.of_nothing:
                return function(*args, **kwargs)  # within the time of what counts as hooked
            began = perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._inside += perf_counter() - began

        return timed


class Steps:
    """Decode steps of a server pinned to one mode, and what its hooks took."""

    def __init__(self, server: Any, watch: Stopwatch, requests: int) -> None:
        self._server, self._watch, self._requests = server, watch, requests
        self._batches = 0
        self._spent: dict[bool, list[dict[str, float]]] = {True: [], False: []}
        """One entry per step, by whether it was the stopwatch alone."""
        self._last: list[Call] = []
        """The hooks of the last step."""

    @property
    def count(self) -> int:
        """Steps in which hooks were timed."""
        return len(self._spent[False])

    def take(self, count: int) -> None:
        """Time the hooks in this many steps with all requests running, and leave these running."""
        server, watch = self._server, self._watch
        while self.count < count:
            if server.idle:
                self._let_arrive()
            watch.of_nothing = not watch.of_nothing
            turn = server.step()
            spent, calls = watch.take()
            if (turn.forward_mode, turn.batch_size) == ("DECODE", self._requests) and not self._anyone_has_finished():
                self._spent[watch.of_nothing].append(spent)
                self._last = calls

    def _let_arrive(self) -> None:
        for index in range(self._requests):
            self._server.add(f"r{self._batches}-{index}", [7 + index % 200, 9, 11, 13], 400)
        self._batches += 1
        for _ in range(12):  # prefill, and the switch to the pinned mode
            self._server.step()

    def _anyone_has_finished(self) -> bool:
        return any(req.finished() for req in self._server.scheduler.running_batch.reqs)

    def by_hook(self) -> dict[str, float]:
        """Seconds per step, without the stopwatch."""
        names = sorted({name for step in self._spent[False] for name in step})
        spent = {name: self._median(name, False) - self._median(name, True) for name in names}
        return {name: seconds for name, seconds in spent.items() if seconds}  # others do not run in every step

    def _median(self, name: str, of_nothing: bool) -> float:
        return median(step.get(name, 0.0) for step in self._spent[of_nothing])

    def seconds(self) -> float:
        """Per step, without the stopwatch."""
        hooks, nothing = (median(sum(step.values()) for step in self._spent[alone]) for alone in (False, True))
        return hooks - nothing

    def warm_seconds(self) -> float:
        """Per step, the hooks of the last one over and over."""
        hooks = [(partial(call.hook, call.answer), call.args, call.kwargs) for call in self._last]
        nothing = [(call.answer, call.args, call.kwargs) for call in self._last]
        return median(_seconds(hooks) - _seconds(nothing) for _ in range(READINGS))


def _seconds(calls: Sequence[tuple[Callable[..., Any], Sequence[Any], dict[str, Any]]]) -> float:
    """Of one round."""
    began = perf_counter()
    for _ in range(ROUNDS):
        for function, args, kwargs in calls:
            function(*args, **kwargs)
    return (perf_counter() - began) / ROUNDS


@contextmanager
def sglangs_own(engine: Any, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """In here ``change`` has been made to the functions of SGLang's that hooks call and a plain server calls itself."""
    from specswitch.engine import v2_compat

    hooks = InstanceHooks()
    hooks.replace(v2_compat, "stash_tokens", change(v2_compat.stash_tokens))
    relay = getattr(engine, "_plain_relay", None)
    for name in () if relay is None else ("resolve_future", "store_to_map"):
        hooks.replace(relay, name, change(getattr(relay, name)))
    try:
        yield
    finally:
        hooks.remove_all()


@click.command()
@click.option("--mode", default="eagle-v2", show_default=True, help="A mode of the CPU engine.")
@click.option("--steps", default=300, show_default=True, help="Decode steps in which hooks are timed.")
@click.option("--requests", default=4, show_default=True, help="Requests that run.")
@click.option(
    "--profile",
    type=click.Path(exists=True, path_type=Path),
    help="Go by goodput, with this profile of whatever server, and not by watermarks.",
)
@click.option("--by-hook", is_flag=True, help="Show each hook's share.")
def main(mode: str, steps: int, requests: int, profile: Path | None, by_hook: bool) -> None:
    """Print the microseconds per decode step while SPECULATIVE and while PLAIN."""
    environment.activate()
    os.environ[configuration.ENABLE_VARIABLE] = "1"
    from sglang.srt.plugins import load_plugins

    load_plugins()
    from specswitch.cpu_engine.inprocess import InProcessScheduler

    watch = Stopwatch()
    around = InstanceHooks.around

    def timed_around(hooks: InstanceHooks, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        around(hooks, owner, name, watch.hook(name, wrapper))

    InstanceHooks.around = timed_around  # type: ignore[method-assign]
    goodput = ["--specswitch-policy", "goodput"] if profile else []
    for pinned in ("speculative", "plain"):
        flags = [configuration.ENABLE_FLAG, "--specswitch-mode", pinned, *goodput]
        options = {"max_running_requests": requests, "max_total_tokens": 512 * requests}
        with InProcessScheduler(mode, flags=flags, checks=False, **options) as server:
            engine = server.scheduler.specswitch.engine
            if profile:
                _go_by(profile, server.scheduler.specswitch)
            timed = Steps(server, watch, requests)
            with sglangs_own(engine, watch.sglangs_own):
                timed.take(steps)
            with sglangs_own(engine, lambda function: _do_nothing):
                warm = timed.warm_seconds()
            assert not server.scheduler.specswitch.faulted
            row = {
                "release": server.release.version,
                "mode": mode,
                "policy": "goodput" if profile else "watermark",
                "pinned": pinned,
                "requests": requests,
                "decode_steps": timed.count,
                "microseconds_per_step": _microseconds(timed.seconds()),
                "warm_microseconds_per_step": _microseconds(warm),
            }
            if by_hook:
                row["by_hook"] = {name: _microseconds(seconds) for name, seconds in timed.by_hook().items()}
            print(json.dumps(row))


def _go_by(profile: Path, switch: Any) -> None:
    """Where a server would refuse a profile that was made for another."""
    config = configuration.from_environ(os.environ)
    assert config is not None
    switch.policy.auto = automatic(config, profiles.load(profile))
    switch.reconsider()


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 2)


def _do_nothing(*args: Any, **kwargs: Any) -> None:
    """In the place of what is not specswitch's."""


if __name__ == "__main__":
    main()
