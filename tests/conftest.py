"""Every test process is one in which SGLang runs on the CPU, with SGLang's own strict checks on."""

from __future__ import annotations

from importlib import metadata

from hypothesis import settings

from specswitch.cpu_engine import environment

# a slow machine is no failure
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def _sglang_is_installed() -> bool:
    try:
        metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return False
    return True


# before any test module imports torch
if _sglang_is_installed():
    environment.activate(strict=True)
