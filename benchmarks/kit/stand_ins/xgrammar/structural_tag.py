"""The same classes under another name."""

from xgrammar import __getattr__  # noqa: F401
