"""Make the virtual environment in which one SGLang release runs on a CPU.

``python3 -m specswitch.cpu_engine.install --release 0.5.12.post1 --venv .venvs/0.5.12.post1``, from a checkout of
this project.  Needs nothing but Python; about 2 GB and a minute or two the first time, and next to nothing when the
environment is up to date already (a stamp in it says what it was made from).

SGLang itself is installed without its dependencies: its torch and CUDA pins serve a GPU.  Every other package is
pinned to versions this project was tested with (``pins/``), and the project's own dependencies may not move them.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from specswitch.cpu_engine.releases import HERE, RELEASES, Release, release

CHECKOUT = HERE.parents[1]
OLDEST_PYTHON = (3, 11)
STAMP = "specswitch-cpu-engine.stamp"


def stamp_of(release: Release) -> str:
    """A digest of all that decides what is in the environment."""
    digest = hashlib.sha256()
    for part in (release.version, release.torch, release.pins.read_text(), (CHECKOUT / "pyproject.toml").read_text()):
        digest.update(part.encode())
    return digest.hexdigest()


def is_ready(release: Release, venv: Path) -> bool:
    """Whether ``venv`` was made from what is in the tree now."""
    stamp = venv / STAMP
    return stamp.exists() and (venv / "bin" / "python").exists() and stamp.read_text().strip() == stamp_of(release)


def install(release: Release, venv: Path) -> None:
    """Make or update ``venv``; raises ``subprocess.CalledProcessError`` when pip fails, having said why."""
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    (venv / STAMP).unlink(missing_ok=True)

    def pip_install(*what: str) -> None:
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *what], check=True, env=_pip_environment())

    pins = str(release.pins)
    # torch first and by itself: what comes later must find a torch, whichever build of it the index offers
    pip_install("--constraint", pins, f"torch=={release.torch}")
    pip_install("--no-deps", f"sglang=={release.version}")
    pip_install("--no-deps", "--requirement", pins)
    pip_install("--constraint", pins, "--editable", f"{CHECKOUT}[dev,demo]")
    (venv / STAMP).write_text(stamp_of(release) + "\n")


def _pip_environment() -> dict[str, str]:
    """PYTHONPATH could show pip packages that are not in the environment."""
    environment = dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1")
    environment.pop("PYTHONPATH", None)
    return environment


def main(arguments: Iterable[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="specswitch.cpu_engine.install", description=__doc__.splitlines()[0])
    parser.add_argument("--release", required=True, choices=sorted(RELEASES), help="SGLang release")
    parser.add_argument("--venv", required=True, type=Path, help="directory of the virtual environment")
    options = parser.parse_args(None if arguments is None else list(arguments))
    wanted, venv = release(options.release), options.venv.absolute()
    if sys.version_info[:2] < OLDEST_PYTHON:
        print(
            f"The CPU engine needs Python {'.'.join(map(str, OLDEST_PYTHON))} or later, "
            f"but this is {sys.version.split()[0]}; run it with a newer python3.",
            file=sys.stderr,
        )
        return 2
    if not (CHECKOUT / "pyproject.toml").exists():
        print(
            f"{CHECKOUT} holds no pyproject.toml, so there is no project to install; "
            "run this from a checkout of specswitch.",
            file=sys.stderr,
        )
        return 2
    if is_ready(wanted, venv):
        print(f"SGLang {wanted.version} for the CPU is ready in {venv}")
        return 0
    print(f"Installing SGLang {wanted.version} for the CPU into {venv} (2 GB, a minute or two) ...", flush=True)
    try:
        install(wanted, venv)
    except subprocess.CalledProcessError as failure:
        print(
            f"Installing into {venv} failed (exit status {failure.returncode}, see above); "
            "run the same command again once the cause is gone.",
            file=sys.stderr,
        )
        return 1
    print(f"SGLang {wanted.version} for the CPU is ready in {venv}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
