"""The demo on a terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from specswitch.demo.report import Report
from specswitch.demo.sampler import Sample
from specswitch.signals import Mode

_STYLES = {Mode.SPECULATIVE.value: "bold blue", Mode.DRAINING.value: "dim", Mode.PLAIN.value: "bold dark_orange"}
_ROW_SECONDS = 3.0


class Screen:
    """Shows stages, a line that follows the load, and the report."""

    def __init__(self, console: Console, load_seconds: float) -> None:
        self._console = console
        self._stages = 0
        self._load_seconds = load_seconds
        self._progress = Progress(
            TextColumn("   "),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("", total=load_seconds, start=False)

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def stage(self, text: str) -> None:
        self._stages += 1
        self._console.print(f"{self._stages}. {text} ...")

    def sample(self, sample: Sample) -> None:
        if self._console.is_terminal and not self._progress.live.is_started:
            self._progress.start()
            self._progress.start_task(self._task)
        accept = "-" if sample.accept_length is None else f"{sample.accept_length:.2f}"
        self._progress.update(
            self._task,
            completed=min(sample.seconds, self._load_seconds),
            description=f"requests {sample.in_flight}  batch {sample.batch_size}  {_styled(sample.mode)}  "
            f"{sample.tokens} tokens  accept length {accept}  transitions {sample.transitions}",
        )

    def report(self, report: Report) -> None:
        """The table over time, the figures, and what the checks say."""
        self._progress.stop()
        console = self._console
        console.print(_over_time(report))
        console.print(_transitions(report))
        for mode, figures in report.by_mode().items():
            console.print(
                f"{_styled(mode)}: {figures.seconds:.1f} s, {figures.tokens} tokens, "
                f"{figures.tokens_per_second:.0f} tokens/s"
            )
        if report.accept_length is not None:
            console.print(f"Accept length over all verify steps: {report.accept_length:.2f} tokens")
        console.print(
            "These are the speeds of a CPU that runs SGLang's GPU kernels through an interpreter or in plain torch. "
            "They show that the server switches, not what switching is worth on a GPU.",
            style="dim",
        )
        for difference in report.differences[:3]:
            console.print(f"DIFFERS: {difference.job.prompt!r}", markup=False)
            console.print(f"  plain: {difference.expected!r}\n  got:   {difference.got!r}", markup=False)
        console.print(verdict(report), style="bold green" if succeeded(report) else "bold red")


def succeeded(report: Report) -> bool:
    """Whether the run showed what it is to show."""
    return not report.differences and report.switched_both_ways and report.fault is None


def verdict(report: Report) -> str:
    """One line on the answers and the switches."""
    total, different = len(report.answers), len(report.differences)
    answers = (
        f"All {total} answers equal the plain server's."
        if not different
        else f"{different} of {total} answers differ from the plain server's."
    )
    if report.fault is not None:
        return f"{answers} Switching stopped with a fault: {report.fault}."
    if not report.switched_both_ways:
        return f"{answers} But the server did not switch to PLAIN and back, so nothing was shown."
    return answers


def _over_time(report: Report) -> Table:
    table = Table("seconds", "in flight", "batch", "mode", "tokens/s", "accept length", "transitions")
    for column in table.columns:
        column.justify = "left" if column.header == "mode" else "right"
        column.no_wrap = column.header == "mode"
    for row in report.rows(_ROW_SECONDS):
        table.add_row(
            f"{row.start:.0f}-{row.end:.0f}",
            row.concurrency,
            str(row.batch_size),
            "\n".join(_styled(mode) for mode in row.modes),
            f"{row.tokens_per_second:.0f}",
            "-" if row.accept_length is None else f"{row.accept_length:.2f}",
            str(row.transitions) if row.transitions else "",
        )
    return table


def _transitions(report: Report) -> Table:
    """With the KV slots given back by each, and the tokens caught up."""
    table = Table(
        "second",
        "transition",
        "because",
        "ms",
        "slots\ngiven back",
        "tokens\ncaught up",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.columns[1].no_wrap = True
    for column in table.columns[-3:]:
        column.justify = "right"
    for event in report.transitions:
        table.add_row(
            f"{event['seconds']:.1f}",
            f"{_styled(event['from'])} > {_styled(event['to'])}",
            event["reason"],
            f"{event['duration_ms']:.1f}",
            str(event["slots_given_back"] or ""),
            str(event["tokens_caught_up"] or ""),
        )
    return table


def _styled(mode: str) -> str:
    return f"[{_STYLES[mode]}]{mode}[/]"
