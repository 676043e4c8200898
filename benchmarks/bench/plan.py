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


class Speed(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Closed-loop throughput at each concurrency."""

    concurrency: list[int]
    rounds: int = 2
    """Requests for each one in flight."""
    repeats: int = 1
    """The whole sweep again, to show the noise."""
    one_token: list[int] = []
    """Levels measured again with prompts of one token, but for the first: a GPU draws less power, and clocks higher, on
    data that is alike, so a server's speed depends on what it is asked."""
    input_tokens: int = 128
    output_tokens: int = 256
    probes: int = 4
    """Requests that stream, whose gaps between chunks give the latency; the others do not."""


class Switches(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One switch each way under load, for each batch size and number of tokens decoded in PLAIN."""

    batch_sizes: list[int]
    missed_tokens: list[int]
    repeats: int = 2
    input_tokens: int = 128
    lead_tokens: int = 120
    """Tokens each request puts out before the switch, and about as many after the return."""


class Accuracy(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Greedy answers, compared with those of the server named ``reference``."""

    reference: str
    requests: int = 64
    concurrency: int = 32
    input_tokens: int = 96
    output_tokens: int = 192
    switches: int = 3
    """Times PLAIN is entered and left meanwhile; 0 on servers that cannot."""


class Server(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    like: str | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    speed: Speed | None = None
    switches: Switches | None = None
    accuracy: Accuracy | None = None


class Plan(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    release: str
    groups: list[list[str]]
    """Servers that run side by side and are measured one after another, the others idle."""
    args: list[str]
    servers: dict[str, Server]
    compare: dict[str, str] = {}
    """Servers by the one that they are compared with in the table."""
    env: dict[str, str] = {}
    launch: tuple[str, ...] = ("{python}", "-m", "sglang.launch_server")
    settle_seconds: float = 0.4

    def command(self, name: str, port: int) -> list[str]:
        """The command line of a server."""
        args = [*self.launch, *self.args, *self._chain(name, "args"), "--host", "127.0.0.1", "--port", str(port)]
        return [self._filled(argument) for argument in args]

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
        known = {"{python}": sys.executable, "{models}": os.environ.get("BENCH_MODELS", str(HERE / "models"))}
        for mark, value in known.items():
            text = text.replace(mark, value)
        return text


def load(path: Path) -> Plan:
    """Read a plan; raises ``msgspec.ValidationError`` or ``ValueError`` with what is wrong."""
    plan = msgspec.convert(tomllib.loads(path.read_text()), Plan)
    named = {name for group in plan.groups for name in group} | set(plan.compare) | set(plan.compare.values())
    named |= {server.like for server in plan.servers.values() if server.like is not None}
    if unknown := named - set(plan.servers):
        raise ValueError(f"{path} names servers that it does not describe: {', '.join(sorted(unknown))}")
    return plan
