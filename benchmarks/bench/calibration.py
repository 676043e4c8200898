"""The server's calibration of itself, when nothing else runs on the GPU."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from bench.site import Row, Site
from specswitch.calibrate import at_start
from specswitch.client import ServerClient
from specswitch.config import SwitchConfig


def measure(site: Site, _: bool) -> Row:
    """What a server started with ``--specswitch-policy goodput`` does before it says that it is ready."""
    site.prepare()
    said: list[str] = []
    warnings: list[str] = []
    began = time.perf_counter()
    at_start.calibrate(ServerClient(site.server.url), SwitchConfig(calibrate="always"), said.append, warnings.append)
    profile = (site.server.switch_state() or {}).get("profile")
    if profile is not None:
        site.answers.parent.joinpath("profiles").mkdir(exist_ok=True)
        shutil.copy(profile, site.answers.parent / "profiles" / f"{site.server.name}-{Path(profile).name}")
    return {
        "seconds": round(time.perf_counter() - began, 2),
        "said": said,
        "profile": profile and Path(profile).name,
        "error": warnings[0] if warnings else None,
    }
