"""Stand-in for ``torchvision.transforms.v2``."""

from ..._missing import missing as __getattr__  # noqa: F401
from . import functional  # noqa: F401
