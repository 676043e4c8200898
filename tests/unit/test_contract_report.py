"""What a check says: verdicts, sentences, and where the release comes from."""

from __future__ import annotations

import itertools
import json
import sys
import zipfile
from pathlib import Path

import pytest

from specswitch.cpu_engine.releases import RELEASES
from specswitch.engine.contract import (
    RELEASE_LINES,
    ContractReport,
    Kind,
    Need,
    Piece,
    ReleaseLine,
    SourceTree,
    Use,
    Verdict,
    check_folder,
    check_installed,
    check_tree,
    check_wheel,
    line_named,
    line_of,
    newest_tested,
)
from specswitch.engine.contract.pieces import comparable
from specswitch.errors import ContractError

SCHEDULER = "sglang.srt.managers.scheduler"
RUN = Piece(SCHEDULER, "Scheduler.run_batch", Kind.METHOD, Use.HOOK, "launch plain batches", args=("batch",))
QUEUE = Piece(SCHEDULER, "Scheduler.result_queue", Kind.ATTRIBUTE, Use.READ, "see results in flight")
OLD = Piece(SCHEDULER, "Scheduler.old_name", Kind.METHOD, Use.CALL, "do a thing", until="0.5.15")
NEW = Piece(SCHEDULER, "Scheduler.new_name", Kind.METHOD, Use.CALL, "do a thing", since="0.5.16")
LINE = ReleaseLine(
    name="0.5.13 and later",
    first="0.5.13",
    before=None,
    paths={"v1": "specswitch.engine.one", "v2": "specswitch.engine.two"},
    tested=("0.5.17", "0.5.23"),
    needs=(
        Need("specswitch.engine.one", (RUN,), frozenset({"v1"})),
        Need("specswitch.engine.two", (RUN, QUEUE, OLD, NEW), frozenset({"v2"})),
    ),
)
SOURCE = """
class Scheduler:
    def event_loop_overlap(self):
        self.result_queue = []
    def run_batch(self, batch): ...
    def {name}(self): ...
"""


@pytest.fixture(autouse=True)
def _one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specswitch.engine.contract.report.RELEASE_LINES", (LINE,))


def sglang(root: Path, source: str = SOURCE.format(name="new_name"), version: str | None = "0.5.23") -> Path:
    """A folder that looks like an installed SGLang."""
    scheduler = root / "sglang/srt/managers/scheduler.py"
    scheduler.parent.mkdir(parents=True)
    (root / "sglang/__init__.py").touch()
    scheduler.write_text(source, encoding="utf-8")
    if version:
        metadata = root / f"sglang-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n", encoding="utf-8")
    return root


def wheel(root: Path, file: Path) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        for path in root.rglob("*"):
            if path.is_file():
                archive.write(path, path.relative_to(root).as_posix())
    return file


def test_a_tested_release(tmp_path: Path) -> None:
    report = check_folder(sglang(tmp_path))
    assert (report.verdict, report.ok, report.newer_than_tested) == (Verdict.TESTED, True, False)
    assert (report.release, report.line) == ("0.5.23", LINE)
    assert (
        report.message() == "SGLang 0.5.23 has all 3 pieces that specswitch relies on and was tested with specswitch."
    )
    report.raise_if_refused()


def test_a_release_between_tested_ones_is_checked_by_contract_only(tmp_path: Path) -> None:
    report = check_folder(sglang(tmp_path), as_release="0.5.20")
    assert report.verdict is Verdict.CHECKED
    assert "was checked by contract, not by tests" in report.message()


@pytest.mark.parametrize("release", ["0.5.24", "0.5.99", "0.6.0", "0.5.24.dev3+gabc", "0.5.23.post1"])
def test_a_newer_release_that_has_every_piece_runs_with_a_warning(tmp_path: Path, release: str) -> None:
    report = check_folder(sglang(tmp_path), as_release=release)
    assert (report.verdict, report.ok, report.newer_than_tested) == (Verdict.NEWER, True, True)
    assert report.message().startswith(f"SGLang {release} is newer than 0.5.23, the newest release that specswitch")
    report.raise_if_refused()


def test_a_newer_release_that_lacks_a_piece_is_refused_by_name(tmp_path: Path) -> None:
    source = SOURCE.format(name="new_name").replace("run_batch", "execute_batch")
    report = check_folder(sglang(tmp_path, source), as_release="0.5.99")
    assert (report.verdict, report.ok, report.newer_than_tested) == (Verdict.MISMATCH, False, True)
    assert report.message() == (
        "SGLang 0.5.99 lacks what specswitch relies on: sglang.srt.managers.scheduler.Scheduler.run_batch is gone "
        "(needed to launch plain batches); install a release that docs/compatibility.md lists as supported, start "
        "without --enable-specswitch, or serve without switching by --specswitch-on-mismatch serve-unswitched."
    )
    with pytest.raises(ContractError, match=r"Scheduler\.run_batch is gone"):
        report.raise_if_refused()


def test_each_engine_path_is_judged_by_its_own_pieces(tmp_path: Path) -> None:
    report = check_folder(sglang(tmp_path, SOURCE.format(name="new_name").replace("result_queue", "results")))
    assert report.serves("v1")
    assert not report.serves("v2")
    assert not report.ok


@pytest.mark.parametrize(
    ("release", "name"), [("0.5.13", "old_name"), ("0.5.15.post1", "new_name"), ("0.5.16", "new_name")]
)
def test_a_piece_is_asked_of_the_releases_that_need_it(tmp_path: Path, release: str, name: str) -> None:
    report = check_folder(sglang(tmp_path, SOURCE.format(name=name)), as_release=release)
    assert report.mismatches == ()
    assert report.pieces_checked == (2 if release == "0.5.15.post1" else 3)


@pytest.mark.parametrize("release", ["0.5.10.post1", "0.4.9", "0.5.12.post1"])
def test_a_release_of_no_line_is_refused_by_name(tmp_path: Path, release: str) -> None:
    report = check_folder(sglang(tmp_path, version=release))
    assert (report.verdict, report.ok, report.line) == (Verdict.UNSUPPORTED, False, None)
    assert report.message().startswith(f"SGLang {release} is not supported, specswitch runs on 0.5.13 and later;")


def test_a_pre_release_counts_as_the_release_it_leads_to(tmp_path: Path) -> None:
    assert check_folder(sglang(tmp_path), as_release="0.5.13rc1").line is LINE
    assert comparable("0.5.24.dev1+g123") == comparable("0.5.24")


def test_a_local_version_is_that_release(tmp_path: Path) -> None:
    assert check_folder(sglang(tmp_path, version="0.5.23+cu130")).verdict is Verdict.TESTED


def test_no_sglang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_folder(tmp_path).verdict is Verdict.ABSENT
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    report = check_installed()
    assert (report.verdict, report.ok) == (Verdict.ABSENT, False)
    assert report.message() == ("No SGLang is installed in this Python environment; install sglang beside specswitch.")


def test_an_sglang_whose_version_cannot_be_told(tmp_path: Path) -> None:
    report = check_tree(SourceTree.folder(sglang(tmp_path)), "main-branch")
    assert (report.verdict, report.ok) == (Verdict.UNSUPPORTED, False)
    assert "cannot be told" in report.message()


def test_the_installed_sglang_is_the_one_that_would_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sglang(tmp_path, "raise RuntimeError('imported')", version="0.5.22")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "sglang", raising=False)
    report = check_installed()
    assert (report.where, report.release, report.ok) == (str(tmp_path), "0.5.22", False)
    assert [mismatch.piece for mismatch in report.mismatches] == [RUN, QUEUE, NEW]
    assert "sglang" not in sys.modules


def test_a_wheel_says_its_release_itself(tmp_path: Path) -> None:
    file = wheel(sglang(tmp_path / "tree"), tmp_path / "renamed.whl")
    report = check_wheel(file)
    assert (report.verdict, report.release, report.where) == (Verdict.TESTED, "0.5.23", str(file))


def test_a_file_that_is_no_wheel(tmp_path: Path) -> None:
    text = tmp_path / "a.whl"
    text.write_text("no zip", encoding="utf-8")
    with pytest.raises(ContractError, match="cannot be read as a wheel of SGLang"):
        check_wheel(text)
    other = wheel(sglang(tmp_path / "tree", version=None), tmp_path / "b.whl")
    with pytest.raises(ContractError, match="cannot be read as a wheel of SGLang"):
        check_wheel(other)


def test_many_missing_pieces_make_one_sentence_still(tmp_path: Path) -> None:
    wanted = tuple(Piece(SCHEDULER, f"Scheduler.f{n}", Kind.METHOD, Use.CALL, "test") for n in range(9))
    line = ReleaseLine("x", "0.5.13", None, {"v2": "m"}, ("0.5.23",), (Need("m", wanted),))
    message = check_folder(sglang(tmp_path), line=line).message()
    assert message.count("is gone") == 4
    assert "and 5 more (see `specswitch check`)" in message
    assert message.count(". ") == 0


def test_the_report_as_json_names_what_needs_the_piece(tmp_path: Path) -> None:
    report = check_folder(sglang(tmp_path, SOURCE.format(name="new_name").replace("result_queue", "results")))
    shape = json.loads(json.dumps(report.as_dict()))
    assert shape["verdict"] == "mismatch"
    assert shape["engines"] == {"v1": "specswitch.engine.one"}
    assert shape["mismatches"] == [
        {
            "piece": "sglang.srt.managers.scheduler.Scheduler.result_queue",
            "kind": "attribute",
            "use": "read",
            "why": "see results in flight",
            "problem": "is gone",
            "needed_by": ["specswitch.engine.two"],
        }
    ]


def test_lines_are_found_by_name() -> None:
    assert line_named("0.5.13 and later") is LINE
    with pytest.raises(ContractError, match=r"choose one of 0\.5\.13 and later"):
        line_named("0.4")
    assert line_of(comparable("0.5.30")) is LINE
    assert newest_tested() == "0.5.23"


def test_the_real_lines_follow_one_another() -> None:
    for earlier, later in itertools.pairwise(RELEASE_LINES):
        assert earlier.before == later.first
    for line in RELEASE_LINES:
        assert all(line.covers(comparable(release)) for release in line.tested)
        for need in line.needs:
            assert need.paths & line.paths.keys()
            for piece in need.pieces:
                assert piece.module.startswith("sglang.")
                assert piece.why
                assert not piece.why.endswith(".")


def test_releases_called_tested_are_those_that_the_tests_can_run() -> None:
    assert {release for line in RELEASE_LINES for release in line.tested} == set(RELEASES)


def test_a_report_without_a_line_serves_nothing() -> None:
    assert not ContractReport("x", "0.1", None).serves("v1")
