"""The name of the GPU, without a context on it."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache


@cache
def name() -> str | None:
    """What ``nvidia-smi`` calls the first GPU; None where there is no such tool or it names none."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    asked = [command, "--query-gpu=name", "--format=csv,noheader"]
    try:
        told = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    return told.partition("\n")[0].strip() or None
