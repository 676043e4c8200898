"""What the contract says about one SGLang: an installed one, a folder of sources, or a wheel."""

from __future__ import annotations

import email.parser
import importlib.metadata
import importlib.util
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from packaging.version import InvalidVersion, Version

from specswitch.engine.contract.pieces import EnginePath, ReleaseLine, comparable
from specswitch.engine.contract.sources import SourceTree
from specswitch.engine.contract.table import RELEASE_LINES
from specswitch.engine.contract.verify import Mismatch, verify
from specswitch.errors import ContractError

_SHOWN_MISMATCHES = 4
_WAY_OUT = (
    "install a release that docs/compatibility.md lists as supported, start without --enable-specswitch, or serve"
    " without switching by --specswitch-on-mismatch serve-unswitched"
)


class Verdict(str, Enum):
    """The outcome of a check, from best to worst."""

    TESTED = "tested"
    """The real-engine tests run on this release, and every piece is there."""
    CHECKED = "checked by contract only"
    """Every piece is there; the real-engine tests run on other releases of the line."""
    NEWER = "newer than tested"
    """Every piece is there, but the release came out after the newest tested one."""
    MISMATCH = "mismatch"
    """A line covers the release, and a piece is missing or changed."""
    UNSUPPORTED = "unsupported release"
    """No line covers the release."""
    ABSENT = "no SGLang"
    """There is no SGLang to check."""

    @property
    def accepted(self) -> bool:
        """Whether specswitch may switch on such an SGLang."""
        return self in (Verdict.TESTED, Verdict.CHECKED, Verdict.NEWER)


@dataclass(frozen=True, slots=True)
class ContractReport:
    """The outcome of one check."""

    where: str
    """The folder or the wheel that was read; empty where there is none."""
    release: str | None
    """SGLang's version; None where there is no SGLang or its version is unknown."""
    line: ReleaseLine | None
    """The release line it was held against."""
    mismatches: tuple[Mismatch, ...] = ()
    newer_than_tested: bool = False
    """The release came out after the newest one that the real-engine tests run on."""
    pieces_checked: int = 0

    @property
    def verdict(self) -> Verdict:
        """One word for the whole."""
        if not self.where:
            return Verdict.ABSENT
        if self.line is None or self.release is None:
            return Verdict.UNSUPPORTED
        if self.mismatches:
            return Verdict.MISMATCH
        if self.newer_than_tested:
            return Verdict.NEWER
        return Verdict.TESTED if self.was_tested else Verdict.CHECKED

    @property
    def was_tested(self) -> bool:
        """Whether the real-engine tests run on this very release."""
        if self.line is None or self.release is None:
            return False
        return comparable(self.release) in [comparable(tested) for tested in self.line.tested]

    @property
    def ok(self) -> bool:
        """Whether specswitch may switch on this SGLang."""
        return self.verdict.accepted

    def serves(self, path: EnginePath) -> bool:
        """Whether every piece that one engine path needs is there, and the line has such an engine."""
        if self.line is None or path not in self.line.paths:
            return False
        needed = {piece.path for need in self.line.needs if path in need.paths for piece in need.pieces}
        return not any(mismatch.piece.path in needed for mismatch in self.mismatches)

    def message(self) -> str:
        """One sentence for the operator: which release, which pieces, and what to do."""
        verdict, release = self.verdict, f"SGLang {self.release}"
        if verdict is Verdict.ABSENT:
            return "No SGLang is installed in this Python environment; install sglang beside specswitch."
        if verdict is Verdict.UNSUPPORTED:
            known = " and ".join(line.name for line in RELEASE_LINES)
            if self.release is None:
                return f"The version of the SGLang in {self.where} cannot be told; specswitch supports {known}."
            return f"{release} is not supported, specswitch runs on {known}; {_WAY_OUT}."
        if verdict is Verdict.MISMATCH:
            shown = "; ".join(_describe(mismatch) for mismatch in self.mismatches[:_SHOWN_MISMATCHES])
            more = len(self.mismatches) - _SHOWN_MISMATCHES
            rest = f"; and {more} more (see `specswitch check`)" if more > 0 else ""
            return f"{release} lacks what specswitch relies on: {shown}{rest}; {_WAY_OUT}."
        if verdict is Verdict.NEWER:
            return (
                f"{release} is newer than {newest_tested()}, the newest release that specswitch was tested on; it has "
                "all that specswitch relies on, so switching is on, but look for a newer specswitch."
            )
        how = "was tested with specswitch" if verdict is Verdict.TESTED else "was checked by contract, not by tests"
        return f"{release} has all {self.pieces_checked} pieces that specswitch relies on and {how}."

    def raise_if_refused(self) -> None:
        """Raise what the operator must see, if switching is refused.

        Raises:
            specswitch.errors.ContractError: with :meth:`message`.
        """
        if not self.ok:
            raise ContractError(self.message())

    def as_dict(self) -> dict[str, object]:
        """JSON-able; the shape of ``specswitch check --json``."""
        return {
            "where": self.where,
            "release": self.release,
            "line": self.line.name if self.line else None,
            "engines": {path: self.line.paths[path] for path in self.line.paths if self.serves(path)}
            if self.line
            else {},
            "verdict": self.verdict.value,
            "ok": self.ok,
            "newer_than_tested": self.newer_than_tested,
            "pieces_checked": self.pieces_checked,
            "mismatches": [
                {
                    "piece": mismatch.piece.path,
                    "kind": mismatch.piece.kind.value,
                    "use": mismatch.piece.use.words,
                    "why": mismatch.piece.why,
                    "problem": mismatch.problem,
                    "needed_by": list(self.line.users(mismatch.piece)) if self.line else [],
                }
                for mismatch in self.mismatches
            ],
            "message": self.message(),
        }


def _describe(mismatch: Mismatch) -> str:
    return f"{mismatch} (needed to {mismatch.piece.why})"


def newest_tested() -> str:
    """The newest release that the real-engine tests run on."""
    return max((release for line in RELEASE_LINES for release in line.tested), key=comparable)


def line_of(release: Version) -> ReleaseLine | None:
    """The release line that covers ``release``."""
    return next((line for line in RELEASE_LINES if line.covers(release)), None)


def line_named(name: str) -> ReleaseLine:
    """The release line called ``name``.

    Raises:
        specswitch.errors.ContractError: there is none.
    """
    for line in RELEASE_LINES:
        if line.name == name:
            return line
    names = ", ".join(line.name for line in RELEASE_LINES)
    raise ContractError(f"There is no release line called {name!r}; choose one of {names}.")


def check_tree(tree: SourceTree, release: str | None, line: ReleaseLine | None = None) -> ContractReport:
    """Hold sources against the line that covers ``release``, or against ``line``."""
    if release is None:
        return ContractReport(tree.where, None, None)
    try:
        version = comparable(release)
    except InvalidVersion:
        return ContractReport(tree.where, None, None)
    line = line or line_of(version)
    if line is None:
        return ContractReport(tree.where, release, None)
    pieces = line.pieces(version)
    return ContractReport(
        tree.where,
        release,
        line,
        verify(tree, pieces),
        version > comparable(newest_tested()),
        len({piece.path for piece in pieces}),
    )


def check_installed(as_release: str | None = None, line: ReleaseLine | None = None) -> ContractReport:
    """Check the SGLang that this process would import, without importing it.

    Its folder comes from :func:`importlib.util.find_spec`, its version from the metadata beside that
    folder, else from the environment's.  ``as_release`` pretends another version.
    """
    spec = importlib.util.find_spec("sglang")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if not folders:
        return ContractReport("", None, None)
    return check_folder(Path(folders[0]).parent, as_release, line)


def check_folder(root: Path, as_release: str | None = None, line: ReleaseLine | None = None) -> ContractReport:
    """Check the ``sglang`` package in ``root``; its version comes from the metadata there or in the environment."""
    if not (root / "sglang").is_dir():
        return ContractReport("", None, None)
    return check_tree(SourceTree.folder(root), as_release or _version_beside(root), line)


def check_wheel(wheel: Path, as_release: str | None = None, line: ReleaseLine | None = None) -> ContractReport:
    """Check a wheel file without unpacking it.

    Raises:
        specswitch.errors.ContractError: the file is no readable wheel of SGLang.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            metadata = wheel_metadata(archive)
            return check_tree(SourceTree.wheel(archive), as_release or metadata.get("Version"), line)
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise ContractError(f"{wheel} cannot be read as a wheel of SGLang ({error}); give a .whl file.") from error


def wheel_metadata(archive: zipfile.ZipFile) -> email.message.Message:
    """The metadata of an open SGLang wheel.

    Raises:
        KeyError: it has none.
    """
    names: Sequence[str] = archive.namelist()
    for name in names:
        folder, _, file = name.partition("/")
        if file == "METADATA" and folder.startswith("sglang-") and folder.endswith(".dist-info"):
            return email.parser.BytesParser().parsebytes(archive.read(name), headersonly=True)
    raise KeyError("no sglang-*.dist-info/METADATA")


def _version_beside(root: Path) -> str | None:
    for distribution in importlib.metadata.distributions(name="sglang", path=[str(root)]):
        return distribution.version
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return None
