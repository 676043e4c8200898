"""``specswitch check``: hold SGLang against what specswitch relies on."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from packaging.version import InvalidVersion
from rich.console import Console
from rich.table import Column, Table

from specswitch.engine.contract import (
    RELEASE_LINES,
    ContractReport,
    EnginePath,
    Piece,
    ReleaseLine,
    Use,
    check_folder,
    check_installed,
    check_wheel,
    line_named,
)
from specswitch.engine.contract.pieces import comparable
from specswitch.errors import ContractError

_WIDTH_WITHOUT_TERMINAL = 200
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.option(
    "--wheel", "wheels", type=_FILE, multiple=True, help="Check wheel files instead, without installing them."
)
@click.argument("more_wheels", metavar="[FILE]...", type=_FILE, nargs=-1)
@click.option("--source", type=_FOLDER, help="Check the sglang package in this folder instead.")
@click.option("--as-release", metavar="VERSION", help="Take SGLang to be this release.")
@click.option(
    "--release-line",
    metavar="LINE",
    help=f"Hold it against this line: {', '.join(line.name for line in RELEASE_LINES)}.",
)
@click.option("--pieces", is_flag=True, help="List every piece that specswitch relies on.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(
    wheels: tuple[Path, ...],
    more_wheels: tuple[Path, ...],
    source: Path | None,
    as_release: str | None,
    release_line: str | None,
    pieces: bool,
    as_json: bool,
) -> None:
    """Hold SGLang against what specswitch relies on.

    Checks the installed SGLang, or with --wheel FILE... released wheels, by parsing the sources:
    neither SGLang nor torch is imported.  Exits with 0 if specswitch would switch on each of them,
    with 1 if not.
    """
    files = (*wheels, *more_wheels)
    if files and source:
        raise click.UsageError("--wheel and --source exclude each other; give one of them.")
    if as_release is not None:
        try:
            comparable(as_release)
        except InvalidVersion as error:
            raise click.UsageError(f"--as-release {as_release} is no version; give one like 0.5.23.") from error
    try:
        line = line_named(release_line) if release_line else None
        if files:
            reports = [check_wheel(file, as_release, line) for file in files]
        elif source:
            reports = [check_folder(source, as_release, line)]
        else:
            reports = [check_installed(as_release, line)]
    except ContractError as error:
        raise click.UsageError(str(error)) from error
    accepted = all(report.ok for report in reports)
    if as_json:
        print(json.dumps({"ok": accepted, "reports": [report.as_dict() for report in reports]}, indent=2))
    else:
        _show(reports, pieces)
    sys.exit(0 if accepted else 1)


def _show(reports: Sequence[ContractReport], pieces: bool) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH_WITHOUT_TERMINAL)
    summary = Table("SGLang", "release line", "v1 engine", "v2 engine", "pieces", "missing", "verdict")
    for report in reports:
        summary.add_row(
            report.release or "none",
            report.line.name if report.line else "none",
            _engine(report, "v1"),
            _engine(report, "v2"),
            str(report.pieces_checked),
            str(len(report.mismatches)),
            report.verdict.value,
            style=None if report.ok else "red",
        )
    console.print(summary)
    for report in reports:
        if pieces and report.line and report.release:
            _show_pieces(console, report, report.line, report.release)
        elif report.mismatches and report.line:
            _show_mismatches(console, report, report.line)
    for report in reports:
        console.print(report.message(), style="green" if report.ok else "bold red", soft_wrap=True)


def _engine(report: ContractReport, path: EnginePath) -> str:
    if report.line is None or path not in report.line.paths:
        return "-"
    return "yes" if report.serves(path) else "no"


def _show_mismatches(console: Console, report: ContractReport, line: ReleaseLine) -> None:
    table = Table(_whole("piece of SGLang"), "what is wrong", "use", "needed to", _whole("by"))
    table.title = f"SGLang {report.release}"
    for mismatch in report.mismatches:
        piece = mismatch.piece
        table.add_row(_path(piece), mismatch.problem, piece.use.words, piece.why, _users(line, piece), style="red")
    console.print(table)


def _show_pieces(console: Console, report: ContractReport, line: ReleaseLine, release: str) -> None:
    problems = {mismatch.piece.path: mismatch.problem for mismatch in report.mismatches}
    table = Table(_whole("piece of SGLang"), "kind", "use", "needed to", _whole("by"), "state")
    table.title = f"SGLang {report.release}"
    for piece in line.pieces(comparable(release)):
        state = problems.get(piece.path, "there")
        style = "red" if piece.path in problems else None
        row = (
            _path(piece) + _parameters(piece),
            piece.kind.value,
            piece.use.words,
            piece.why,
            _users(line, piece),
            state,
        )
        table.add_row(*row, style=style)
    console.print(table)


def _whole(header: str) -> Column:
    """A column whose words are broken rather than cut: dotted paths are what the reader needs."""
    return Column(header, overflow="fold")


def _path(piece: Piece) -> str:
    return piece.path.removeprefix("sglang.srt.")


def _parameters(piece: Piece) -> str:
    if not piece.use & (Use.CALL | Use.HOOK):
        return ""
    return f"({', '.join([*piece.args, *(f'{name}=' for name in piece.keywords)])})"


def _users(line: ReleaseLine, piece: Piece) -> str:
    return ", ".join(module.removeprefix("specswitch.") for module in line.users(piece))
