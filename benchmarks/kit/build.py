"""Pack an SGLang release, with what it needs, for a Hopper GPU machine without a network.

    python benchmarks/kit/build.py 0.5.12.post1

writes ``benchmarks/.kit/0.5.12.post1/kit.tar.xz`` (about 35 MB).  ``offline.sh`` unpacks it on the GPU machine, which
has to offer Python 3.12, PyTorch 2.11 for CUDA 13, the CUDA compiler, and the usual packages around PyTorch.  No model
weights are needed: servers start with random ones.

Needs Python 3.11 with pip, tar, xz and c++filt (binutils).  Wheels stay in ``benchmarks/.kit/wheels``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import fatbin
import tomllib

HERE = Path(__file__).resolve().parent
KITS = HERE.parent / ".kit"
FLASH_ATTENTION = "sgl_kernel/flash_ops.abi3.so"
OTHER_KERNELS = "sgl_kernel/sm90/common_ops.abi3.so"
HEAD_DIM = 128
GLIBC_MINORS = (39, 38, 35, 34, 31, 28, 27, 26, 24, 17, 12, 5)


def download(requirements: list[str], folder: Path) -> list[Path]:
    """The wheels of these requirements alone, for the GPU machine's Python."""
    folder.mkdir(parents=True, exist_ok=True)
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in GLIBC_MINORS]
    platforms += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", "3.12", "--implementation", "cp", "--dest", str(folder)]
    for platform in platforms:
        command += ["--platform", platform]
    subprocess.run([*command, *requirements], check=True)
    wanted = {_wheel_key(requirement.replace("==", "-")) for requirement in requirements}
    wheels = sorted(folder.glob("*.whl"))
    return [wheel for wheel in wheels if _wheel_key("-".join(wheel.name.split("-")[:2])) in wanted]


def _wheel_key(name_and_version: str) -> str:
    name, _, version = name_and_version.rpartition("-")
    return f"{name.replace('-', '_').lower()}-{version}"


def unpack(wheels: list[Path], site: Path, left_out: list[str]) -> None:
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if not any(fnmatch(name, pattern) for pattern in left_out):
                    archive.extract(name, site)


def slim(site: Path) -> None:
    attention = fatbin.attention_other_than(HEAD_DIM, "cutlass::bfloat16_t")
    for library, unwanted in ((FLASH_ATTENTION, attention), (OTHER_KERNELS, fatbin.other_than(90))):
        zeroed = fatbin.blank(site / library, unwanted)
        print(f"{library}: {zeroed / 1e6:.0f} MB of GPU code left out", flush=True)


def pack(folder: Path, archive: Path) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    partial = archive.with_suffix(".partial")
    tar = ["tar", "--sparse", "--hole-detection=raw", "--sort=name", "--owner=0", "--group=0"]
    # older than anything that the GPU machine compiles from it
    tar += ["--mtime=2024-01-01", "-C", str(folder), "-cf", "-", "."]
    with partial.open("wb") as target:
        packed = subprocess.Popen(tar, stdout=subprocess.PIPE)
        subprocess.run(["xz", "--threads=0", "-3"], stdin=packed.stdout, stdout=target, check=True)
        if packed.wait():
            raise SystemExit("tar failed")
    os.replace(partial, archive)
    print(f"{archive}: {archive.stat().st_size / 1e6:.1f} MB")


def main() -> None:
    content = tomllib.loads((HERE / "content.toml").read_text())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", choices=sorted(content["releases"]))
    parser.add_argument("--wheels", type=Path, default=KITS / "wheels", help="where downloaded wheels are kept")
    options = parser.parse_args()
    release = content["releases"][options.release]
    requirements = [f"sglang=={options.release}", *release["wheels"], *content["wheels"]]
    wheels = download(requirements, options.wheels / options.release)
    KITS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=KITS) as scratch:
        site = Path(scratch) / "site"
        unpack(wheels, site, content["left_out"])
        slim(site)
        for name in release["stand_ins"]:
            shutil.copytree(HERE / "stand_ins" / name, site / name)
        pack(Path(scratch), KITS / options.release / "kit.tar.xz")


if __name__ == "__main__":
    main()
