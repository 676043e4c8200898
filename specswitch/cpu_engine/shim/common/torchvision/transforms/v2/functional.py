"""Stand-in for ``torchvision.transforms.v2.functional``."""

from ..._missing import missing as __getattr__  # noqa: F401
from .. import InterpolationMode  # noqa: F401
