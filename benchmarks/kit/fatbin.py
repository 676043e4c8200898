"""Zero the GPU code in a CUDA library that one kind of GPU, and one attention head size, never runs.

nvcc puts GPU code into containers: a 16-byte header (magic 0xBA55ED50, version, header size, body size), then
entries, each a header (its size at byte 4, the payload's at 8, the compute capability at 28) and a cubin.  Only
payloads are zeroed, so every offset stays valid and the library loads as before; a zeroed kernel fails when it is
launched, and compresses to nothing.
"""

from __future__ import annotations

import mmap
import re
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

_MAGIC = struct.pack("<I", 0xBA55ED50)
_CONTAINER = struct.Struct("<4sHHQ")
_ENTRY = struct.Struct("<HHIQ")
_CAPABILITY_AT = 28
_SYMBOL = re.compile(rb"\.text\.(_Z\w+)")
_FORWARD = re.compile(
    r"CollectiveMainloopFwdSm90<\d+, cute::tuple<.*?>, "  # stages, cluster
    r"cute::tuple<cute::C<\d+>, cute::C<\d+>, cute::C<(?P<head>\d+)> ?>, (?P<value>\d+), (?P<element>[\w:]+),"
)


class Cubin(NamedTuple):
    start: int
    size: int
    capability: int


def cubins(image: mmap.mmap) -> Iterator[Cubin]:
    """Every entry of every container."""
    at = image.find(_MAGIC)
    while at >= 0:
        _, version, header_size, body_size = _CONTAINER.unpack_from(image, at)
        if (version, header_size) != (1, _CONTAINER.size):  # the four bytes by chance
            at = image.find(_MAGIC, at + 4)
            continue
        entry, end = at + header_size, at + header_size + body_size
        while entry < end:
            _, _, entry_header_size, payload_size = _ENTRY.unpack_from(image, entry)
            (capability,) = struct.unpack_from("<I", image, entry + _CAPABILITY_AT)
            yield Cubin(entry + entry_header_size, payload_size, capability)
            entry += entry_header_size + payload_size
        at = image.find(_MAGIC, end)


def blank(library: Path, unwanted: Callable[[mmap.mmap], Iterator[Cubin]]) -> int:
    """Zero the unwanted cubins of ``library`` in place; returns the bytes zeroed."""
    zeroed = 0
    with library.open("r+b") as stream, mmap.mmap(stream.fileno(), 0) as image:
        for cubin in list(unwanted(image)):
            image[cubin.start : cubin.start + cubin.size] = bytes(cubin.size)
            zeroed += cubin.size
    return zeroed


def other_than(capability: int) -> Callable[[mmap.mmap], Iterator[Cubin]]:
    """Cubins of every other compute capability (90 for Hopper)."""

    def unwanted(image: mmap.mmap) -> Iterator[Cubin]:
        return (cubin for cubin in cubins(image) if cubin.capability != capability)

    return unwanted


def attention_other_than(head_dim: int, element: str, capability: int = 90) -> Callable[[mmap.mmap], Iterator[Cubin]]:
    """FlashAttention 3 forward kernels of every other head size or element type, and other capabilities' cubins.

    Cubins without a forward kernel (combine, scheduling) are needed by every call.  A compressed cubin cannot be
    looked into and goes: the wheels seen compress only kernels of head size 192.
    """

    def unwanted(image: mmap.mmap) -> Iterator[Cubin]:
        names: dict[Cubin, set[bytes]] = {}
        for cubin in cubins(image):
            payload = image[cubin.start : cubin.start + cubin.size]
            if cubin.capability != capability or not payload.startswith(b"\x7fELF"):
                yield cubin
            else:
                names[cubin] = {name for name in _SYMBOL.findall(payload) if b"FlashAttnFwdSm" in name}
        plain = _demangled(sorted(set().union(*names.values())))
        for cubin, kernels in names.items():
            if kernels and not any(_is_for(plain[kernel], head_dim, element) for kernel in kernels):
                yield cubin

    return unwanted


def _is_for(kernel: str, head_dim: int, element: str) -> bool:
    if "CollectiveMainloopFwdSm80" in kernel:
        return False  # compiled for every capability, used on older GPUs
    found = _FORWARD.search(kernel)
    if found is None:
        raise ValueError(f"no head size found in the kernel name {kernel[:300]}")
    return (int(found["head"]), int(found["value"]), found["element"]) == (head_dim, head_dim, element)


def _demangled(names: list[bytes]) -> dict[bytes, str]:
    answer = subprocess.run(["c++filt"], input=b"\n".join(names), capture_output=True, check=True).stdout
    return dict(zip(names, answer.decode().splitlines(), strict=True))
