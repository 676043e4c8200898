"""The environment in which SGLang runs on a CPU, for a child process or for this one.

``python -m specswitch.cpu_engine.environment COMMAND ...`` runs a command in it, with the SGLang release that is
installed beside this Python: ``... environment pytest tests/real``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from specswitch.cpu_engine.releases import HERE, Release, installed_release

_CALLERS_CHOICE = frozenset({"OMP_NUM_THREADS", "CXX"})


def child_environment(
    release: Release, base: Mapping[str, str] | None = None, *, strict: bool = False
) -> dict[str, str]:
    """``base`` (default: this process's environment) plus what ``release`` needs.

    PYTHONPATH is put in front of an existing one.  OMP_NUM_THREADS and CXX stay as the caller set them.  ``strict``
    turns on SGLang's own memory checks and asserts, for tests; without it they are as SGLang ships them.
    """
    environment = dict(os.environ if base is None else base)
    for name, value in release.environment.items():
        if name in _CALLERS_CHOICE and name in environment:
            continue
        environment[name] = value
    for name, value in release.strict_environment.items():
        environment.pop(name, None)
        if strict:
            environment[name] = value
    shim = [str(HERE / "shim" / directory) for directory in release.shim]
    rest = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path and path not in shim]
    environment["PYTHONPATH"] = os.pathsep.join(shim + rest)
    return environment


def activate(release: Release | None = None, *, strict: bool = False) -> Release:
    """Make this process, and the children it starts, one in which SGLang runs on the CPU; may be called again.

    ``strict`` as for :func:`child_environment`; some of SGLang's asserts are decided when it is imported.

    Has to happen before torch, Triton, transformers or SGLang are imported, since they read the environment once:
    ``RuntimeError`` when it is too late.
    """
    release = installed_release() if release is None else release
    shim = [str(HERE / "shim" / directory) for directory in release.shim]
    if "sgl_release_patches" in sys.modules and all(directory in sys.path for directory in shim):
        if strict:
            os.environ.update(release.strict_environment)
        return release
    early = [name for name in ("torch", "triton", "transformers", "sglang") if name in sys.modules]
    if early:
        raise RuntimeError(
            f"{', '.join(early)} is imported already, so the CPU engine cannot be set up in this process any more; "
            "call specswitch.cpu_engine.environment.activate() first, or start the process with child_environment()"
        )
    os.environ.update(child_environment(release, strict=strict))
    sys.path[:0] = [directory for directory in shim if directory not in sys.path]
    import sgl_on_cpu.patches  # noqa: F401
    import sgl_release_patches  # noqa: F401

    return release


def main() -> None:
    """Replace this process by the command given on the command line."""
    if len(sys.argv) < 2:
        sys.exit("usage: python -m specswitch.cpu_engine.environment COMMAND [ARGUMENT ...]")
    environment = child_environment(installed_release())
    environment["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), environment.get("PATH", os.defpath)])
    os.execvpe(sys.argv[1], sys.argv[1:], environment)


if __name__ == "__main__":
    main()
