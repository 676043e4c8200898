"""Torch functions in the place of Triton kernels, which Triton's interpreter runs too, but far slower."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any


class InsteadOfTriton:
    """Launched as a Triton kernel is, ``kernel[(programs,)](...)``; ``original`` is the one it stands for."""

    def __init__(self, function: Callable[..., None], original: Any) -> None:
        self._function = function
        self.original = original

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self._function, *grid)


def replace_kernels(stand_ins: str, *names: str) -> Callable[[ModuleType], None]:
    """A patch for :func:`sgl_on_cpu.after_import.after_import`: these kernels of the module are replaced by the
    functions of the same names in module ``stand_ins``."""

    def replace(module: ModuleType) -> None:
        functions = import_module(stand_ins)
        for name in names:
            setattr(module, name, InsteadOfTriton(getattr(functions, name), getattr(module, name)))

    return replace
