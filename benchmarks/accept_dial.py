"""An SGLang plugin for benchmarks: the simulated accept length of a running server, turned from outside.

SGLang reads ``SGLANG_SIMULATE_ACC_LEN`` once and draws each step's accept length by dice.  Where ``ACCEPT_DIAL`` names
a file with one float64, that number holds instead, from the next verify step on, and fractions are carried over from
step to step: 2.5 gives 2, 3, 2, 3...  So servers that are compared accept exactly as much.  Simulation itself still has
to be on.  ``bench.dial`` writes the file and makes SGLang find this plugin.

Relies on ``sglang/srt/speculative/spec_utils.py`` ``generate_simulated_accept_index`` (0.5.12 to 0.5.17), which is
called once for each verify step of a batch.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any


class SteadyAcceptance:
    """Whole accept lengths whose mean is what the dial says."""

    def __init__(self, read: Callable[[], float]) -> None:
        self._read = read
        self._carried = 0.0

    def next(self, longest: int) -> int:
        """The next verify step's accept length in tokens, 1 to ``longest``."""
        exact = min(float(longest), max(1.0, self._read())) + self._carried
        length = min(longest, max(1, int(exact)))
        self._carried = exact - length
        return length


def register() -> None:
    """Put the dial in SGLang's way; nothing without ``ACCEPT_DIAL``."""
    path = os.environ.get("ACCEPT_DIAL")
    if not path:
        return
    from sglang.srt.speculative import spec_utils

    with Path(path).open("rb") as stream:
        shared = mmap.mmap(stream.fileno(), 8, access=mmap.ACCESS_READ)
    acceptance = SteadyAcceptance(lambda: struct.unpack("<d", shared[:8])[0])
    simulate = spec_utils.generate_simulated_accept_index

    def dialled(*args: Any, spec_steps: int, **kwargs: Any) -> Any:
        kwargs["simulate_acc_len"] = float(acceptance.next(spec_steps + 1))
        return simulate(*args, spec_steps=spec_steps, **kwargs)

    spec_utils.generate_simulated_accept_index = dialled
