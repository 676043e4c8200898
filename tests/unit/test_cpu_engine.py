"""The table of releases, the environment and the installation of the CPU engine; no SGLang involved."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specswitch.cpu_engine import install
from specswitch.cpu_engine.environment import child_environment
from specswitch.cpu_engine.releases import HERE, RELEASES, Release, as_flags, release

CHECKOUT = HERE.parents[1]


def each_release() -> Any:
    return pytest.mark.parametrize("chosen", list(RELEASES.values()), ids=list(RELEASES))


def test_flags_are_the_launcher_s() -> None:
    arguments = {"disable_overlap_schedule": True, "disable_cuda_graph": False, "page_size": 16, "model_path": "/m/t"}
    assert as_flags(arguments) == ["--disable-overlap-schedule", "--page-size", "16", "--model-path", "/m/t"]


def test_an_unknown_release_names_the_known_ones() -> None:
    with pytest.raises(RuntimeError, match=r"knows SGLang 0\.5\.12\.post1, .*, not 0\.4\.0"):
        release("0.4.0")


@each_release()
def test_an_unknown_mode_names_the_known_ones(chosen: Release) -> None:
    with pytest.raises(ValueError, match="no mode 'eagle9'; choose one of plain"):
        chosen.server_arguments("eagle9")


@each_release()
def test_arguments_of_every_mode(chosen: Release, tmp_path: Path) -> None:
    for name, mode in chosen.modes.items():
        arguments = chosen.server_arguments(name, tmp_path)
        assert arguments["device"] == "cpu"
        assert arguments["model_path"] == str(tmp_path / "target")
        assert arguments["disable_overlap_schedule"] == (not mode.overlap)
        draft = None if mode.draft is None else str(tmp_path / mode.draft)
        assert arguments.get("speculative_draft_model_path") == draft
        if not mode.paged:
            with pytest.raises(ValueError, match="page_size=1 only"):
                chosen.server_arguments(name, page_size=16)


def test_an_overlap_that_the_mode_cannot_have_is_refused() -> None:
    first = release("0.5.12.post1")
    assert first.server_arguments("eagle-v2")["disable_overlap_schedule"] is False
    with pytest.raises(ValueError, match="always runs with overlap=True"):
        first.server_arguments("eagle-v2", overlap=False)
    assert release("0.5.23").server_arguments("ngram", overlap=True)["disable_overlap_schedule"] is False


def test_ngram_with_pages_drafts_a_chain() -> None:
    arguments = release("0.5.23").server_arguments("ngram", page_size=16)
    assert arguments["page_size"] == 16
    assert arguments["speculative_ngram_max_bfs_breadth"] == 1


@each_release()
def test_the_environment_of_a_child(chosen: Release) -> None:
    shim = [str(HERE / "shim" / directory) for directory in chosen.shim]
    base = {"PYTHONPATH": os.pathsep.join(["/mine", shim[0]]), "OMP_NUM_THREADS": "4", "HF_HUB_OFFLINE": "0"}

    environment = child_environment(chosen, base)
    assert environment["PYTHONPATH"].split(os.pathsep) == [*shim, "/mine"]
    assert environment["OMP_NUM_THREADS"] == "4", "the caller's choice"
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["TRITON_INTERPRET"] == "1"
    assert not set(chosen.strict_environment) & set(environment)

    strict = child_environment(chosen, environment, strict=True)
    assert chosen.strict_environment.items() <= strict.items()
    assert strict["PYTHONPATH"] == environment["PYTHONPATH"]
    assert not set(chosen.strict_environment) & set(child_environment(chosen, strict))


@each_release()
def test_every_directory_of_the_shim_is_there(chosen: Release) -> None:
    for directory in chosen.shim:
        assert (HERE / "shim" / directory).is_dir()
    assert sum((HERE / "shim" / directory / "sitecustomize.py").exists() for directory in chosen.shim) == 1
    assert sum((HERE / "shim" / directory / "sgl_release_patches.py").exists() for directory in chosen.shim) == 1


@each_release()
def test_pins_are_exact_and_leave_torch_and_sglang_to_the_installer(chosen: Release) -> None:
    lines = chosen.pins.read_text().split()
    names = [line.split("==")[0].lower() for line in lines]
    assert all(line.count("==") == 1 for line in lines)
    assert len(set(names)) == len(names)
    assert not {"torch", "sglang", "specswitch"} & set(names)
    assert {"transformers", "triton", "xgrammar", "numpy", "pytest", "matplotlib"} <= set(names)


def test_the_installer_needs_nothing_but_the_standard_library() -> None:
    for module in ("__init__", "install", "releases"):
        tree = ast.parse((HERE / f"{module}.py").read_text())
        names = {
            name.split(".")[0]
            for node in ast.walk(tree)
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        assert names <= {*sys.stdlib_module_names, "specswitch"}


@pytest.fixture
def venv(tmp_path: Path, mocker: Any) -> Path:
    """A place for an environment, where commands are recorded instead of run."""

    def run(command: list[str], **options: Any) -> None:
        if command[1:3] == ["-m", "venv"]:
            (Path(command[3]) / "bin").mkdir(parents=True)
            (Path(command[3]) / "bin" / "python").touch()

    mocker.patch.object(install.subprocess, "run", side_effect=run)
    return tmp_path / "venv"


def commands() -> list[list[str]]:
    return [call.args[0] for call in install.subprocess.run.call_args_list]  # type: ignore[attr-defined]


@each_release()
def test_installing_twice_installs_once(chosen: Release, venv: Path) -> None:
    arguments = ["--release", chosen.version, "--venv", str(venv)]
    assert install.main(arguments) == 0
    made, *pip = commands()
    assert made[1:] == ["-m", "venv", str(venv)]
    assert all(command[:3] == [str(venv / "bin" / "python"), "-m", "pip"] for command in pip)
    assert [command[-1] for command in pip] == [
        f"torch=={chosen.torch}",
        f"sglang=={chosen.version}",
        str(chosen.pins),
        f"{CHECKOUT}[dev,demo]",
    ]
    # what the project itself brings may not move SGLang's packages
    assert pip[3][-4:-1] == ["--constraint", str(chosen.pins), "--editable"]
    assert "--no-deps" in pip[1]

    assert install.main(arguments) == 0
    assert len(commands()) == 5


def test_changed_pins_install_again(venv: Path) -> None:
    assert install.main(["--release", "0.5.12.post1", "--venv", str(venv)]) == 0
    (venv / install.STAMP).write_text("made from other pins")
    assert install.main(["--release", "0.5.12.post1", "--venv", str(venv)]) == 0
    assert len(commands()) == 5 + 4


def test_a_failed_installation_is_not_taken_for_a_finished_one(
    venv: Path, mocker: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install.main(["--release", "0.5.12.post1", "--venv", str(venv)]) == 0
    (venv / install.STAMP).write_text("made from other pins")
    mocker.patch.object(install.subprocess, "run", side_effect=subprocess.CalledProcessError(7, ["pip"]))
    assert install.main(["--release", "0.5.12.post1", "--venv", str(venv)]) == 1
    assert "exit status 7" in capsys.readouterr().err
    assert not install.is_ready(release("0.5.12.post1"), venv)


def test_an_old_python_is_told_so(venv: Path, mocker: Any, capsys: pytest.CaptureFixture[str]) -> None:
    mocker.patch.object(install, "OLDEST_PYTHON", (99, 0))
    assert install.main(["--release", "0.5.12.post1", "--venv", str(venv)]) == 2
    assert "needs Python 99.0 or later" in capsys.readouterr().err
    assert commands() == []
