"""Patch a module the moment it has been imported, in whichever process imports it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

Patch = Callable[[ModuleType], None]

_patches: dict[str, list[Patch]] = {}


def after_import(name: str) -> Callable[[Patch], Patch]:
    """Decorator: call the function with module ``name`` once that module's own code has run.

    Must be used before the module is imported; otherwise the patch would come too late in silence,
    so that is a ``RuntimeError``.
    """

    def register(patch: Patch) -> Patch:
        if name in sys.modules:
            raise RuntimeError(f"{name} is imported already, so its CPU patch {patch.__name__} would have no effect")
        _patches.setdefault(name, []).append(patch)
        return patch

    return register


class _PatchingLoader(importlib.abc.Loader):
    def __init__(self, inner: importlib.abc.Loader, name: str) -> None:
        self._inner = inner
        self._name = name

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        for patch in _patches[self._name]:
            patch(module)

    def __getattr__(self, attribute: str) -> object:
        # inspect and importlib.resources ask a loader for get_source and the like
        return getattr(self._inner, attribute)


class _PatchingFinder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _patches:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _PatchingLoader(spec.loader, name)
                return spec
        return None


sys.meta_path.insert(0, _PatchingFinder())
