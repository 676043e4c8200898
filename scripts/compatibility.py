#!/usr/bin/env python3
"""Check every SGLang release from 0.5.11 to the newest, and write docs/compatibility.md.

    python scripts/compatibility.py                     # fetch what is missing, check, write
    python scripts/compatibility.py --offline           # only the wheels fetched before
    python scripts/compatibility.py --verify            # write nothing; fail if the document would change

The wheels (about 300 MB in all) are kept in --cache and fetched once, by package name, with pip.  They are
read, never installed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from specswitch.engine.contract import RELEASE_LINES, ContractReport, EnginePath, check_wheel  # noqa: E402
from specswitch.engine.contract.report import wheel_metadata  # noqa: E402

OLDEST = Version("0.5.11")
AT_ONCE = 4
"""Downloads."""
DOCUMENT = ROOT / "docs" / "compatibility.md"


@dataclass(frozen=True)
class Row:
    """One release."""

    release: Version
    torch: str
    report: ContractReport


def main() -> int:
    parser = argparse.ArgumentParser(description="Check every SGLang release and write docs/compatibility.md.")
    parser.add_argument(
        "--cache", type=Path, default=default_cache(), help="folder of the wheels (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=DOCUMENT, help="the document (default: docs/compatibility.md)")
    parser.add_argument("--offline", action="store_true", help="check only the wheels in the cache")
    parser.add_argument("--verify", action="store_true", help="write nothing; exit with 1 if the document would change")
    arguments = parser.parse_args()

    arguments.cache.mkdir(parents=True, exist_ok=True)
    if not arguments.offline:
        have = wheels(arguments.cache)
        with ThreadPoolExecutor(AT_ONCE) as fetching:
            list(
                fetching.map(
                    fetch, (release for release in published() if release not in have), repeat(arguments.cache)
                )
            )
    with ProcessPoolExecutor() as checking:
        rows = list(checking.map(row, *zip(*sorted(wheels(arguments.cache).items()), strict=True)))
    if not rows:
        sys.exit(f"There is no SGLang wheel in {arguments.cache}; run without --offline to fetch them.")
    for entry in rows:
        print(f"{entry.release!s:14} {entry.report.verdict.value:26} {len(entry.report.mismatches)} missing")
    if arguments.verify:
        return verify(arguments.out, rows)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(document(rows), encoding="utf-8")
    print(f"wrote {arguments.out}")
    return 0


def verify(path: Path, rows: Sequence[Row]) -> int:
    """1 if the document says something else than was found; a release that it does not know is only named."""
    current = path.read_text(encoding="utf-8") if path.exists() else ""
    known = set(re.findall(r"^\| ([0-9]\S*) \|", current, re.MULTILINE))
    for entry in rows:
        if str(entry.release) not in known:
            print(f"sglang {entry.release} is not in {path.name} yet; run scripts/compatibility.py.", file=sys.stderr)
    if current == document([entry for entry in rows if str(entry.release) in known]):
        return 0
    print(f"{path.name} does not say what the check found; run scripts/compatibility.py.", file=sys.stderr)
    return 1


def default_cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "specswitch" / "wheels"


def published() -> list[Version]:
    """The releases from 0.5.11 on that pip finds for this Python, oldest first."""
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", "sglang"], check=True, capture_output=True, text=True
    ).stdout
    found = re.search(r"^Available versions: (.+)$", listing, re.MULTILINE)
    if found is None:
        sys.exit("pip index versions sglang printed no versions; check the network, or use --offline.")
    versions = (Version(text.strip()) for text in found.group(1).split(","))
    return sorted(version for version in versions if version >= OLDEST)


def fetch(release: Version, cache: Path) -> None:
    """Download one wheel; an interrupted download leaves nothing behind that looks whole."""
    print(f"fetching sglang {release}", flush=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*command, "--dest", str(cache), f"sglang=={release}"], check=True)


def wheels(cache: Path) -> dict[Version, Path]:
    """The SGLang wheels in ``cache`` by release."""
    found: dict[Version, Path] = {}
    for path in sorted(cache.glob("sglang-*.whl")):
        try:
            name, version, _, _ = parse_wheel_filename(path.name)
        except InvalidWheelFilename:
            continue
        if name == "sglang" and version >= OLDEST:
            found[version] = path
    return found


def row(release: Version, wheel: Path) -> Row:
    with zipfile.ZipFile(wheel) as archive:
        required = wheel_metadata(archive).get_all("Requires-Dist") or []
    pins = [requirement for text in required if (requirement := Requirement(text)).name == "torch"]
    plain = [
        str(pin.specifier).removeprefix("==") for pin in pins if pin.marker is None or "extra" not in str(pin.marker)
    ]
    return Row(release, ", ".join(dict.fromkeys(plain)) or "none", check_wheel(wheel))


def document(rows: Sequence[Row]) -> str:
    """The whole of docs/compatibility.md."""
    return "\n".join([*_head(), *_table(rows), *_missing(rows), *_lines(), ""])


def _head() -> Iterable[str]:
    return (
        "# Compatibility with SGLang",
        "",
        "Written by `scripts/compatibility.py`; do not edit.  It reads every released SGLang wheel from 0.5.11 on",
        "and holds its sources against the contract in `specswitch/engine/contract/table/`: every function that",
        "specswitch hooks or calls, with the parameters it relies on, and every attribute that it reads or writes.",
        "",
        "`specswitch check` does the same with the SGLang that you have installed, and so does every server that is",
        "started with `--enable-specswitch`.",
        "",
        "- **checked: run** - the tests that drive the real scheduler run on this release, and it has every piece.",
        "- **checked: contract only** - its sources were held against the contract, but no test has run on it.  Pieces",
        "  are matched by name, place and parameters; that SGLang still means the same by them is not shown.",
        "- **v1** and **v2** - whether specswitch can drive the non-overlap and the overlap speculative worker of that",
        "  release; `-` where SGLang has no such worker.",
        "",
    )


def _table(rows: Sequence[Row]) -> Iterable[str]:
    yield "| SGLang | supported | v1 | v2 | torch pin | checked | missing |"
    yield "|---|---|---|---|---|---|---|"
    for entry in rows:
        report = entry.report
        checked = "run" if report.ok and report.was_tested else "contract only"
        cells = (
            str(entry.release),
            "yes" if report.ok else "no",
            _engine(report, "v1"),
            _engine(report, "v2"),
            entry.torch,
            checked,
            str(len(report.mismatches)) if report.mismatches else "nothing",
        )
        yield f"| {' | '.join(cells)} |"
    yield ""


def _engine(report: ContractReport, path: EnginePath) -> str:
    if report.line is None or path not in report.line.paths:
        return "-"
    return "yes" if report.serves(path) else "no"


def _missing(rows: Sequence[Row]) -> Iterable[str]:
    lacking = [entry for entry in rows if not entry.report.ok]
    if not lacking:
        return
    yield "## What is missing"
    yield ""
    for entry in lacking:
        line = entry.report.line
        if line is None:
            yield f"- **{entry.release}**: no engine of specswitch serves this release."
            continue
        yield f"- **{entry.release}**:"
        for mismatch in entry.report.mismatches:
            users = ", ".join(f"`{module}`" for module in line.users(mismatch.piece))
            yield f"  - `{mismatch.piece.path}` {mismatch.problem}; {users} needs it to {mismatch.piece.why}"
    yield ""


def _lines() -> Iterable[str]:
    yield "## Release lines"
    yield ""
    yield "| line | engines | tests run on |"
    yield "|---|---|---|"
    for line in RELEASE_LINES:
        engines = ", ".join(f"{path} `{module}`" for path, module in line.paths.items())
        yield f"| {line.name} | {engines} | {', '.join(line.tested)} |"
    yield ""
    yield "A release after the newest tested one is held against the newest line.  If it has every piece, specswitch"
    yield "runs and warns once that the release is newer than tested.  If not, a server with `--enable-specswitch` does"
    yield "not start, or serves without switching where `--specswitch-on-mismatch serve-unswitched` asks for that."
    yield ""
    yield "When SGLang publishes a release, `make contract` names it; `python scripts/compatibility.py` adds it here."
    yield "Where pieces are missing, the engine and its rows in the table change together.  A release joins its line's"
    yield "`tested` once the real-engine tests pass on it."


if __name__ == "__main__":
    sys.exit(main())
