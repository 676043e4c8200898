"""The kinds of measurement.  Each yields rows, one dictionary each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from bench import accuracy, calibration, loads, speed, switches
from bench.plan import Server
from bench.site import Row, Site

_KINDS: dict[str, Callable[..., Row]] = {
    "calibrate": calibration.measure,
    "accuracy": accuracy.measure,
    "speed": speed.measure,
    "switch": switches.measure,
    "ramp": loads.measure_ramp,
    "trace": loads.measure_trace,
}
_SETTINGS = {"switch": "switches"}


def cases(name: str, plan: Server) -> Iterator[tuple[str, Row]]:
    """Every (kind, arguments) that a server's description asks for."""
    every: dict[str, Iterable[Row]] = {
        "calibrate": ({},) if plan.calibrate else (),
        "accuracy": accuracy.cases(plan.accuracy, name) if plan.accuracy else (),
        "speed": speed.cases(plan.speed) if plan.speed else (),
        "ramp": loads.ramp_cases(plan.ramp) if plan.ramp else (),
        "trace": loads.trace_cases(plan.trace) if plan.trace else (),
        "switch": switches.cases(plan.switches) if plan.switches else (),
    }
    for kind, found in every.items():
        for arguments in found:
            yield kind, arguments


def in_turns(work: Mapping[str, Sequence[tuple[str, Row]]]) -> list[tuple[str, str, Row]]:
    """(server, kind, arguments) of all servers' cases, so that what is compared is measured close in time.

    A machine's speed drifts by more than what is looked for; so at each level the servers take turns.
    """
    kinds = list(_KINDS)
    every = [(name, kind, arguments) for name, found in work.items() for kind, arguments in found]
    loads = list(dict.fromkeys(_load(arguments) for _, _, arguments in every))

    def turn(case: tuple[str, str, Row]) -> tuple[int, int, int, int]:
        _, kind, arguments = case
        place = kinds.index(kind), loads.index(_load(arguments))
        return *place, arguments.get("repeat", 0), arguments.get("concurrency", 0)

    return sorted(every, key=turn)


def _load(arguments: Row) -> str:
    return str(arguments.get("content", arguments.get("course", "")))


def measure(site: Site, plan: Server, kind: str, arguments: Row) -> Row:
    """One row."""
    settings = getattr(plan, _SETTINGS.get(kind, kind))
    return {"kind": kind, "server": site.server.name, **arguments, **_KINDS[kind](site, settings, **arguments)}
