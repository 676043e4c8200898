"""``specswitch check``: what it prints, its JSON, and its exit status."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from specswitch.cli import SUBCOMMANDS, main
from specswitch.engine.contract import Kind, Need, Piece, ReleaseLine, Use

RUN = Piece(
    "sglang.srt.managers.scheduler", "Scheduler.run_batch", Kind.METHOD, Use.HOOK, "launch plain batches", ("batch",)
)
LINE = ReleaseLine(
    "0.5.13 and later",
    "0.5.13",
    None,
    {"v2": "specswitch.engine.v2"},
    ("0.5.23",),
    (Need("specswitch.engine.v2", (RUN,)),),
)


@pytest.fixture(autouse=True)
def _one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specswitch.engine.contract.report.RELEASE_LINES", (LINE,))


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return wheel(tmp_path / "sglang-0.5.23-py3-none-any.whl", "0.5.23", "run_batch")


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    return wheel(tmp_path / "sglang-0.5.22-py3-none-any.whl", "0.5.22", "launch_batch")


def wheel(path: Path, version: str, method: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("sglang/__init__.py", "")
        archive.writestr("sglang/srt/managers/scheduler.py", f"class Scheduler:\n    def {method}(self, batch): ...\n")
        archive.writestr(f"sglang-{version}.dist-info/METADATA", f"Name: sglang\nVersion: {version}\n\n")
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["check", *map(str, arguments)])


def test_a_wheel_that_matches(good: Path) -> None:
    result = run("--wheel", good)
    assert result.exit_code == 0
    assert "SGLang 0.5.23 has all 1 pieces that specswitch relies on and was tested with specswitch." in result.output


def test_several_wheels_of_which_one_does_not_match(good: Path, bad: Path) -> None:
    result = run("--wheel", good, bad)
    assert result.exit_code == 1
    assert "managers.scheduler.Scheduler.run_batch" in result.output
    assert (
        "SGLang 0.5.22 lacks what specswitch relies on: sglang.srt.managers.scheduler.Scheduler.run_batch is gone"
        in (result.output)
    )
    assert "SGLang 0.5.23 has all" in result.output
    assert run("--wheel", bad, "--wheel", good).exit_code == 1


def test_json(good: Path, bad: Path) -> None:
    result = run("--json", "--wheel", bad, good)
    assert result.exit_code == 1
    shape = json.loads(result.output)
    assert shape["ok"] is False
    assert [report["verdict"] for report in shape["reports"]] == ["mismatch", "tested"]
    assert shape["reports"][0]["mismatches"][0]["piece"] == RUN.path
    assert shape["reports"][0]["message"].count("\n") == 0


def test_a_simulated_release(good: Path) -> None:
    result = run("--wheel", good, "--as-release", "0.5.99")
    assert result.exit_code == 0
    assert "SGLang 0.5.99 is newer than 0.5.23, the newest release that specswitch was tested on" in result.output
    result = run("--wheel", good, "--as-release", "0.5.10")
    assert result.exit_code == 1
    assert "SGLang 0.5.10 is not supported" in result.output


def test_another_line_can_be_asked_for(good: Path) -> None:
    assert run("--wheel", good, "--as-release", "0.5.10", "--release-line", "0.5.13 and later").exit_code == 0
    result = run("--wheel", good, "--release-line", "0.4")
    assert result.exit_code == 2
    assert "There is no release line called '0.4'" in result.output


def test_a_folder(good: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(good) as archive:
        archive.extractall(tmp_path / "unpacked")
    assert run("--source", tmp_path / "unpacked").exit_code == 0
    assert run("--source", tmp_path / "unpacked", "--wheel", good).exit_code == 2


def test_every_piece_can_be_listed(bad: Path) -> None:
    result = run("--wheel", bad, "--pieces")
    assert result.exit_code == 1
    assert "managers.scheduler.Scheduler.run_batch(batch)" in result.output
    assert "launch plain batches" in result.output
    assert "is gone" in result.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--wheel", "nowhere.whl"], "nowhere.whl"),
        (["--as-release", "newest"], "--as-release newest is no version"),
    ],
)
def test_wrong_arguments(arguments: list[str], sentence: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert sentence in result.output


def test_a_file_that_is_no_wheel(tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_text("x", encoding="utf-8")
    result = run("--wheel", tmp_path / "x.whl")
    assert result.exit_code == 2
    assert "cannot be read as a wheel of SGLang" in result.output


def test_help_lists_the_subcommands_without_importing_them() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert all(name in result.output for name in SUBCOMMANDS)
    assert CliRunner().invoke(main, ["nothing"]).exit_code == 2


def test_check_imports_neither_torch_nor_sglang(good: Path) -> None:
    code = (
        "import sys; from click.testing import CliRunner; from specswitch.cli import main; "
        f"CliRunner().invoke(main, ['check', '--json', '--wheel', {str(good)!r}], catch_exceptions=False); "
        "assert 'specswitch.cli.check' in sys.modules; assert not {'torch', 'sglang', 'numpy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
