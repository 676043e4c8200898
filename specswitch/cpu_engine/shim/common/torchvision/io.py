"""Stand-in for ``torchvision.io``."""

from ._missing import missing as __getattr__  # noqa: F401
