"""A function for whatever a caller wants of the torchvision stand-in."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn


def missing(name: str) -> Callable[..., NoReturn]:
    """A function that says, when called, that torchvision is not installed."""
    if name.startswith("__"):
        raise AttributeError(name)

    def call(*args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f"torchvision.{name} was called, but only an import stand-in is installed")

    return call
