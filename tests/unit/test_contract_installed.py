"""The real contract on the SGLang of this environment, where there is one, and on altered copies of it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from specswitch.engine.contract import (
    RELEASE_LINES,
    ContractReport,
    SourceTree,
    Verdict,
    check_installed,
    check_tree,
    check_wheel,
    newest_tested,
)

SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
SPEC = importlib.util.find_spec("sglang")
pytestmark = [pytest.mark.real, pytest.mark.skipif(SPEC is None, reason="no SGLang in this environment")]


@pytest.fixture(scope="module")
def site() -> Path:
    assert SPEC is not None
    assert SPEC.submodule_search_locations
    return Path(SPEC.submodule_search_locations[0]).parent


@pytest.fixture(scope="module")
def report() -> ContractReport:
    started = time.process_time()
    report = check_installed()
    assert time.process_time() - started < 10
    return report


@pytest.fixture(scope="module")
def release(report: ContractReport) -> str:
    assert report.release is not None
    return report.release


@pytest.fixture(scope="module")
def sources(site: Path, release: str) -> dict[str, str]:
    """The files that a check of the installed SGLang reads, by path."""
    read: dict[str, str] = {}

    def record(path: str) -> bytes | None:
        if not (site / path).is_file():
            return None
        read[path] = (site / path).read_text(encoding="utf-8")
        return read[path].encode()

    check_tree(SourceTree("recorded", record), release)
    return read


@pytest.fixture
def altered_wheel(sources: dict[str, str], release: str, tmp_path: Path) -> Callable[[Callable[[str], str]], Path]:
    """Makes a wheel of those files after an edit to each."""

    def make(edit: Callable[[str], str]) -> Path:
        wheel = tmp_path / f"sglang-{release}-py3-none-any.whl"
        edited = {path: edit(text) for path, text in sources.items()}
        assert edited != sources
        with zipfile.ZipFile(wheel, "w") as archive:
            for path, text in edited.items():
                archive.writestr(path, text)
            archive.writestr(f"sglang-{release}.dist-info/METADATA", f"Name: sglang\nVersion: {release}\n\n")
        return wheel

    return make


def test_it_has_every_piece(report: ContractReport) -> None:
    assert report.mismatches == ()
    assert report.ok
    assert report.line
    assert all(report.serves(path) for path in report.line.paths)


def test_it_does_not_pass_for_a_release_of_another_line(report: ContractReport) -> None:
    others = [line for line in RELEASE_LINES if line is not report.line]
    assert others
    assert all(not check_installed(line=line).ok for line in others)


def test_checking_imports_neither_sglang_nor_torch() -> None:
    code = (
        "import sys; from specswitch.engine.contract import check_installed; r = check_installed(); "
        "assert r.release, r; assert not {'sglang', 'torch'} & sys.modules.keys(), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_simulated_newer_release_that_has_every_piece_runs(report: ContractReport) -> None:
    if report.release != newest_tested():
        pytest.skip(f"SGLang {report.release} may spell things as later releases do not")
    simulated = check_installed(as_release="0.5.99")
    assert (simulated.verdict, simulated.newer_than_tested, simulated.ok) == (Verdict.NEWER, True, True)


def test_a_renamed_function_is_reported_by_name(
    altered_wheel: Callable[[Callable[[str], str]], Path], release: str
) -> None:
    report = check_wheel(altered_wheel(lambda text: text.replace("update_running_batch", "renew_running_batch")))
    assert report.verdict is Verdict.MISMATCH
    assert [str(mismatch) for mismatch in report.mismatches] == [
        f"{SCHEDULER}.update_running_batch is gone (similar name there: renew_running_batch)"
    ]
    assert report.message().startswith(f"SGLang {release} lacks what specswitch relies on: {SCHEDULER}.update_running")


def test_a_removed_parameter_is_reported_by_name(altered_wheel: Callable[[Callable[[str], str]], Path]) -> None:
    before, after = "def update_running_batch(self, batch: ScheduleBatch)", "def update_running_batch(self)"
    problems = [
        str(mismatch) for mismatch in check_wheel(altered_wheel(lambda text: text.replace(before, after))).mismatches
    ]
    assert problems == [f"{SCHEDULER}.update_running_batch lost the parameter 'batch'"]


def test_a_removed_attribute_is_reported_by_name(altered_wheel: Callable[[Callable[[str], str]], Path]) -> None:
    report = check_wheel(altered_wheel(lambda text: re.sub(r"\bseq_lens_cpu\b", "lens_on_host", text)))
    [mismatch] = report.mismatches
    assert str(mismatch).startswith("sglang.srt.managers.schedule_batch.ScheduleBatch.seq_lens_cpu is gone")


def test_a_hook_that_nothing_calls_any_more_is_reported(altered_wheel: Callable[[Callable[[str], str]], Path]) -> None:
    report = check_wheel(altered_wheel(lambda text: text.replace("self.update_running_batch(", "self._update(")))
    problems = [str(mismatch) for mismatch in report.mismatches]
    assert problems == [f"{SCHEDULER}.update_running_batch is no longer called in get_next_batch_to_run"]
