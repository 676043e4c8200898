"""Replace methods and attributes of one object, and put them back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

_MISSING = object()


class InstanceHooks:
    """Wraps bound methods on instances, never on classes, so that nothing else in the process changes.

    A hook is an instance attribute that shadows the class's method; :meth:`remove_all` deletes it, or
    restores what the instance held before.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def around(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        """Call ``wrapper(original, *args, **kwargs)`` where ``owner.name(*args, **kwargs)`` was called.

        Raises:
            AttributeError: ``owner`` has no such method.
        """
        original = getattr(owner, name)
        self.replace(owner, name, functools.wraps(original)(functools.partial(wrapper, original)))

    def replace(self, owner: Any, name: str, value: object) -> None:
        """Set ``owner.name`` until :meth:`remove_all`."""
        before = vars(owner).get(name, _MISSING)
        self._undo.append(functools.partial(_restore_attribute, owner, name, before))
        setattr(owner, name, value)

    def replace_item(self, mapping: MutableMapping[Any, Any], key: Any, value: object) -> None:
        """Set ``mapping[key]`` until :meth:`remove_all`.

        Raises:
            KeyError: there is nothing under ``key``.
        """
        self._undo.append(functools.partial(mapping.__setitem__, key, mapping[key]))
        mapping[key] = value

    def add_item(self, mapping: MutableMapping[Any, Any], key: Any, value: object) -> None:
        """Add ``mapping[key]`` until :meth:`remove_all`."""
        self._undo.append(functools.partial(mapping.pop, key))
        mapping[key] = value

    def remove_all(self) -> None:
        """Undo in reverse order."""
        while self._undo:
            self._undo.pop()()


def _restore_attribute(owner: Any, name: str, before: object) -> None:
    if before is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, before)


@contextmanager
def swapped(owner: Any, **values: object) -> Iterator[None]:
    """Set attributes of ``owner`` for the duration of a ``with`` block."""
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)
