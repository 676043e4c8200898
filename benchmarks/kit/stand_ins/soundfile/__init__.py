"""Imported for audio models."""

__version__ = "0.13.1"
