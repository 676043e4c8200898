"""Turn the accept length that running servers simulate; the servers' side is ``accept_dial``."""

from __future__ import annotations

import os
import struct
from pathlib import Path

_BENCHMARKS = Path(__file__).resolve().parent.parent


class Dial:
    """One accept length for every server that was started with :meth:`environment`."""

    def __init__(self, folder: Path, length: float) -> None:
        """``folder``: for the dial's file and for what lets SGLang find the plugin."""
        self._file = folder.resolve() / "accept-length"
        self._plugin = folder.resolve() / "plugin"
        described = self._plugin / "accept_dial-0.dist-info"
        described.mkdir(parents=True, exist_ok=True)
        (described / "METADATA").write_text("Metadata-Version: 2.1\nName: accept-dial\nVersion: 0\n")
        (described / "entry_points.txt").write_text("[sglang.srt.plugins]\naccept_dial = accept_dial:register\n")
        self._file.write_bytes(struct.pack("<d", length))

    def turn(self, length: float) -> None:
        """Accept ``length`` tokens a verify step from now on."""
        with self._file.open("r+b") as stream:  # servers have this very file mapped
            stream.write(struct.pack("<d", length))

    def environment(self) -> dict[str, str]:
        """Variables of a server that follows."""
        path = os.pathsep.join(filter(None, [str(self._plugin), str(_BENCHMARKS), os.environ.get("PYTHONPATH")]))
        return {"ACCEPT_DIAL": str(self._file), "PYTHONPATH": path}
