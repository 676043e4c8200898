"""Measure specswitch against plain, always-speculative and SGLang's adaptive servers on this machine's GPU.

    python benchmarks/run.py benchmarks/plans/0.5.12.toml results/

Rows are appended to ``results/rows.jsonl`` as they are measured.  The same command again goes on where it stopped: it
measures what has no row yet, and starts no server that has nothing left to do.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench import measure, report, servers, widen
from bench import plan as plans
from bench.dial import Dial

STARTED = time.monotonic()
console = Console(width=160, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    console.print(f"[dim]{time.monotonic() - STARTED:6.1f} s[/dim]  ", end="")
    console.print(text, markup=False)


class Rows:
    """What was measured so far, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.all: list[dict[str, Any]] = []
        if path.exists():
            self.all = [json.loads(line) for line in path.read_text().splitlines()]

    def has(self, kind: str, server: str, arguments: dict[str, Any]) -> bool:
        wanted = {"kind": kind, "server": server, **arguments}
        return any(row.get("error") is None and wanted.items() <= row.items() for row in self.all)

    def add(self, row: dict[str, Any]) -> None:
        self.all.append(row)
        with self._path.open("a") as stream:
            stream.write(json.dumps(row) + "\n")


def main(
    plan_file: Annotated[Path, typer.Argument(help="What to start and to measure.")],
    out: Annotated[Path, typer.Argument(help="Folder for rows, logs, table and plot.")],
    deadline: Annotated[float, typer.Option(help="Start no measurement after so many seconds.")] = float("inf"),
    reserve: Annotated[float, typer.Option(help="Seconds that a group's start has to leave.")] = 75.0,
    start_limit: Annotated[float, typer.Option(help="Seconds a group of servers may take to start.")] = 300.0,
    logs: Annotated[Path | None, typer.Option(help="Folder for the servers' logs.", show_default="OUT/logs")] = None,
    base_port: Annotated[
        int, typer.Option(help="The first server's; below 32768, where outgoing connections begin.")
    ] = 31_000,
    only: Annotated[str, typer.Option(help="Only these servers, separated by commas.")] = "",
    kinds: Annotated[str, typer.Option(help="Only these kinds of measurement, separated by commas.")] = "",
    trace: Annotated[
        Path | None, typer.Option(help="A load trace (Azure's columns), for plans that replay one.")
    ] = None,
) -> None:
    plan = plans.load(plan_file)
    out.mkdir(parents=True, exist_ok=True)
    if any("{trained-wide}" in argument for argument in plan.every_argument()):
        for name in ("target", "eagle3"):
            widen.widen(plans.TRAINED / name, plans.WIDENED / name)
    dial = None if plan.accept_length is None else Dial(out / "dial", plan.accept_length)
    rows = Rows(out / "rows.jsonl")
    chosen = set(only.split(",")) if only else set(plan.servers)
    started: list[dict[str, Any]] = []
    for number, group in enumerate(plan.groups):
        work = {
            name: [
                case
                for case in measure.cases(name, plan.servers[name])
                if not rows.has(case[0], name, case[1]) and (not kinds or case[0] in kinds.split(","))
            ]
            for name in group
            if name in chosen
        }
        names = [name for name in work if work[name]]
        left = deadline - (time.monotonic() - STARTED)
        if not names or left < reserve:
            if names:
                say(f"no time left to start {', '.join(names)}")
            continue
        say(f"group {number + 1} of {len(plan.groups)}: starting {', '.join(names)}")
        environment = {} if dial is None else dial.environment()
        limit = min(start_limit, left)
        with servers.running(plan, names, logs or out / "logs", base_port, limit, say, environment) as running:
            sites = {server.name: _site(plan, server, out, dial, trace) for server in running}
            _measure(plan, sites, work, rows, deadline)
            started += [
                {"server": server.name, "ready_seconds": server.ready_seconds, "failure": server.failure,
                 "command": server.command, "env": plan.environment(server.name),
                 "events": [event for kind in ("active", "admission", "plain_graphs", "profile", "warning", "fault")
                            for event in server.events(f"specswitch.{kind}")]}
                for server in running
            ]  # fmt: skip
        _write_servers(out, plan, started)
    text = report.table(rows.all, plan.compare)
    (out / "table.md").write_text(text + "\n")
    if any(row["kind"] == "speed" for row in rows.all):
        report.plot(rows.all, plan.compare, out / "throughput.svg")
    console.print(text, markup=False)
    if any(server["failure"] for server in started) or any(row.get("error") for row in rows.all):
        raise typer.Exit(1)


def _site(
    plan: plans.Plan, server: servers.RunningServer, out: Path, dial: Dial | None, trace: Path | None
) -> measure.Site:
    command = plan.command(server.name, 0)
    model = Path(command[command.index("--model-path") + 1])
    return measure.Site(
        server=server,
        model=model,
        vocab_size=int(json.loads((model / "config.json").read_text())["vocab_size"]),
        settle_seconds=plan.settle_seconds,
        answers=out / "answers",
        trace=trace,
        dial=dial,
        accept_length=plan.accept_length,
    )


def _measure(
    plan: plans.Plan,
    sites: dict[str, measure.Site],
    work: dict[str, list[tuple[str, dict[str, Any]]]],
    rows: Rows,
    deadline: float,
) -> None:
    """Take the servers' measurements; one that breaks ends them for its server alone."""
    for name, kind, arguments in measure.in_turns(work):
        server = sites[name].server if name in sites else None
        if server is None or server.failure is not None:
            continue
        if time.monotonic() - STARTED > deadline:
            say(f"no time left for {name}: {kind} {arguments}")
            return
        began = time.monotonic()
        try:
            row = measure.measure(sites[name], plan.servers[name], kind, arguments)
        except Exception as error:
            say(f"{name}: {kind} {arguments} broke: {type(error).__name__}: {error}")
            server.look()
            server.failure = server.failure or f"{kind} {arguments} broke: {error!r}"
            continue
        row["wall_seconds"] = round(time.monotonic() - began, 2)
        rows.add(row)
        say(json.dumps(row))


def _write_servers(out: Path, plan: plans.Plan, started: list[dict[str, Any]]) -> None:
    path = out / "servers.json"
    before = json.loads(path.read_text())["servers"] if path.exists() else []
    names = {server["server"] for server in started}
    kept = [server for server in before if server["server"] not in names]
    path.write_text(json.dumps({"machine": _machine(), "release": plan.release, "servers": kept + started}, indent=1))


def _machine() -> dict[str, Any]:
    import torch

    versions = {}
    for package in ("sglang", "torch", "sglang-kernel", "flashinfer-python", "transformers", "triton"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"gpu": gpu, "cuda": torch.version.cuda, "python": platform.python_version(), **versions}


if __name__ == "__main__":
    typer.run(main)
