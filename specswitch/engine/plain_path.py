"""What a scheduler looks like while it launches a decode batch as a server without speculation does."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

Value = tuple[Any, str, object]
"""``(owner, attribute, value)``."""


class PlainPath:
    """A context manager in which attributes have other values, around a context of the target's model runner.

    It is one object for all launches: entering it allocates next to nothing.  It cannot be nested.
    """

    def __init__(self, *values: Value) -> None:
        self._values = values
        self._before: list[object] = []
        self._forward: AbstractContextManager[None] = nullcontext()

    def within(self, forward: AbstractContextManager[None]) -> PlainPath:
        """This, to be entered at once; enters ``forward`` and raises what that raises."""
        forward.__enter__()
        self._forward = forward
        return self

    def __enter__(self) -> None:
        self._before = [getattr(owner, name) for owner, name, _ in self._values]
        for owner, name, value in self._values:
            setattr(owner, name, value)

    def __exit__(self, *exception: Any) -> None:
        for (owner, name, _), value in zip(self._values, self._before, strict=True):
            setattr(owner, name, value)
        self._forward.__exit__(*exception)
