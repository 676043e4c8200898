"""Import-only stand-in: SGLang's multimodal modules import torchvision although a text model never calls it."""

from . import io, transforms

__all__ = ["io", "transforms"]
__version__ = "0.0.0"
