"""Imported by SGLang at start; nothing of it is called on a CPU."""

from . import __getattr__  # noqa: F401
