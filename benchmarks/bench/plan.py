"""What a run does: servers, in groups that share the GPU, and the measurements each of them takes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import tomllib

HERE = Path(__file__).resolve().parent.parent
TRAINED = HERE.parent / "specswitch" / "cpu_engine" / "models"
WIDENED = HERE / ".widened"
"""What :mod:`bench.widen` makes of them, where a plan asks for it."""
MEASUREMENTS = ("speed", "accuracy", "switches", "ramp", "trace")


class Speed(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Closed-loop throughput at each concurrency."""

    concurrency: list[int]
    pins: tuple[str, ...] = ("",)
    """Modes to pin a server with specswitch to while it runs, one sweep each; "" leaves it as it was started."""
    accept_length: float | None = None
    """Simulated accept length, where the plan has a dial; None: the plan's."""
    rounds: int = 2
    """Requests for each one in flight."""
    auto_rounds: int = 4
    """The same where the server chooses its mode: it may first weigh a small advantage for some seconds."""
    repeats: int = 1
    """The whole sweep again, to show the noise."""
    low_repeats: int = 0
    """Further ones at up to 32 requests, where a verify step waits for the CPU, and a wave takes a second or two."""
    one_token: list[int] = []
    """Levels measured again with prompts of one token, but for the first: a GPU draws less power, and clocks higher, on
    data that is alike, so a server's speed depends on what it is asked."""
    input_tokens: int = 128
    output_tokens: int = 256
    probes: int = 4
    """Requests that stream, whose gaps between chunks give the latency; the others do not."""


class Switches(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """To PLAIN and back under load, by pins, for each batch size and number of tokens decoded in PLAIN."""

    batch_sizes: list[int]
    missed_tokens: list[int]
    repeats: int = 2
    input_tokens: int = 128
    lead_tokens: int = 60
    """Tokens each request puts out before the switch, and again after the return."""


class Ramp(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A closed loop whose concurrency and accept length change."""

    courses: dict[str, list[tuple[int, float]]]
    """(requests in flight, accept length) of each phase, by name."""
    pin: str = ""
    phase_seconds: float = 4.0
    repeats: int = 1
    input_tokens: int = 128
    output_tokens: int = 192
    probes: int = 4


class Trace(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Requests that come when a public load trace says so, sped up."""

    speedup: float
    seconds: float
    """How long requests arrive."""
    pin: str = ""
    accept_length: float | None = None
    skip_seconds: float = 0.0
    """Where in the trace to start, in its own time."""
    most_input_tokens: int = 4096
    most_output_tokens: int = 1024
    probe_every: int = 8
    """Every so many requests one streams."""
    repeats: int = 1


class Accuracy(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Greedy answers, compared with those of the server named ``reference``."""

    reference: str
    requests: int = 64
    concurrency: int = 32
    texts: bool = False
    """Prompts are texts that the models of ``specswitch.cpu_engine`` were trained to carry on."""
    input_tokens: int = 96
    output_tokens: int = 192
    switches: int = 3
    """Times PLAIN is entered and left meanwhile; 0 on servers that cannot."""
    switch_seconds: float = 0.3
    """Between two pins."""


class Server(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    like: str | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    calibrate: bool = False
    """Have the server measure itself before anything else, as it does at start where nothing runs beside it."""
    speed: Speed | None = None
    accuracy: Accuracy | None = None
    switches: Switches | None = None
    ramp: Ramp | None = None
    trace: Trace | None = None


class Plan(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    release: str
    groups: list[list[str]]
    """Servers that run side by side and are measured one after another, the others idle."""
    args: list[str]
    servers: dict[str, Server]
    compare: dict[str, str] = {}
    """Servers by the one that they are compared with in the table; ``NAME, PIN`` is a server pinned to a mode."""
    accept_length: float | None = None
    """Simulated accept length, in exact means and changeable (``accept_dial``); None: as the servers' ``env`` says."""
    env: dict[str, str] = {}
    launch: tuple[str, ...] = ("{python}", "-m", "sglang.launch_server")
    settle_seconds: float = 0.4

    def command(self, name: str, port: int) -> list[str]:
        """The command line of a server."""
        args = [*self.launch, *self.args, *self._chain(name, "args"), "--host", "127.0.0.1", "--port", str(port)]
        return [self._filled(argument) for argument in args]

    def every_argument(self) -> list[str]:
        """Those of all servers, marks not filled in."""
        return [*self.args, *(argument for server in self.servers.values() for argument in server.args)]

    def environment(self, name: str) -> dict[str, str]:
        """Variables of a server, besides those of this process."""
        pairs = [*self.env.items(), *self._chain(name, "env")]
        return {key: self._filled(value) for key, value in pairs}

    def _chain(self, name: str, field: str) -> list[Any]:
        server = self.servers[name]
        own = getattr(server, field)
        inherited = self._chain(server.like, field) if server.like is not None else []
        return [*inherited, *(own.items() if isinstance(own, Mapping) else own)]

    @staticmethod
    def _filled(text: str) -> str:
        known = {
            "{python}": sys.executable,
            "{models}": os.environ.get("BENCH_MODELS", str(HERE / "models")),
            "{trained}": str(TRAINED),
            "{trained-wide}": str(WIDENED),
        }
        for mark, value in known.items():
            text = text.replace(mark, value)
        return text


def load(path: Path) -> Plan:
    """Read a plan; raises ``msgspec.ValidationError`` or ``ValueError`` with what is wrong.

    A measurement's table in ``[common]`` holds what it has in common on every server that takes it.
    """
    document = tomllib.loads(path.read_text())
    common = document.pop("common", {})
    if unknown := set(common) - set(MEASUREMENTS):
        raise ValueError(f"{path} has in common what is no measurement: {', '.join(sorted(unknown))}")
    for server in document.get("servers", {}).values():
        server |= {kind: {**common[kind], **server[kind]} for kind in common if kind in server}
    plan = msgspec.convert(document, Plan)
    named = {name for group in plan.groups for name in group} | set(plan.compare) | set(plan.compare.values())
    named |= {server.like for server in plan.servers.values() if server.like is not None}
    if unknown := {name.split(",")[0] for name in named} - set(plan.servers):
        raise ValueError(f"{path} names servers that it does not describe: {', '.join(sorted(unknown))}")
    return plan
