"""Profiles from benchmark rows of steady decode throughput, where no server is at hand to calibrate.

    python scripts/profiles_from_throughput.py ROWS... --recipe RECIPE.yaml --out FOLDER

``ROWS`` are files of rows, a JSON array or one object per line, with the requests in flight (``conc`` or
``concurrency``), the tokens per second at full concurrency (``steady_tok_s``), and for speculative modes the accept
length (``acclog`` or ``accept_len_log``).  A step's seconds are requests times accept length over tokens per second.

``RECIPE`` names the profiles to write: under each file name, which rows are ``plain`` and which ``speculative`` (their
``mode``), and the fields of the profile that the rows do not tell.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import msgspec
import yaml

from specswitch.calibrate.fit import Measured, fit_curve
from specswitch.profile import Prefill, Profile, ProfileKey, Switching, save

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of one file."""
    text = path.read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = (
        json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in text.splitlines() if line]
    )
    return rows


def measured(rows: Iterable[dict[str, Any]], modes: Iterable[str], context_per_request: float) -> list[Measured]:
    """The steps behind the rows of ``modes``; a row without an accept length is of plain decode."""
    steps = []
    for row in rows:
        if row["mode"] in modes:
            requests = row.get("conc", row.get("concurrency"))
            accept = row.get("acclog", row.get("accept_len_log")) or 1.0
            steps.append(Measured(requests, requests * context_per_request, requests * accept / row["steady_tok_s"]))
    return steps


@click.command()
@click.argument("files", metavar="ROWS...", type=_FILE, nargs=-1, required=True)
@click.option("--recipe", type=_FILE, required=True, help="What to make of the rows.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Where to write.")
def main(files: tuple[Path, ...], recipe: Path, out: Path) -> None:
    """Write the profiles that RECIPE names."""
    by_file = {path.name: rows_of(path) for path in files}
    out.mkdir(parents=True, exist_ok=True)
    for name, entry in yaml.safe_load(recipe.read_text(encoding="utf-8")).items():
        if name.startswith("."):  # shared by the others
            continue
        rows = by_file[entry["rows"]]
        context = entry["context_per_request"]
        profile = Profile(
            key=msgspec.convert(entry["key"], ProfileKey),
            source=" ".join(entry["source"].split()),
            plain=fit_curve(measured(rows, entry["plain"], context), entry["seconds_per_context_token"]["plain"]),
            speculative=fit_curve(
                measured(rows, entry["speculative"], context), entry["seconds_per_context_token"]["speculative"]
            ),
            switching=msgspec.convert(entry["switching"], Switching),
            prefill=msgspec.convert(entry["prefill"], Prefill),
            accept_length=entry["accept_length"],
        )
        save(profile, out / name)
        print(out / name)


if __name__ == "__main__":
    main()
