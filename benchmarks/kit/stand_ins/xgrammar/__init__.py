"""Imported for its classes; servers of this kit run with --grammar-backend none."""

from pydantic import BaseModel


def __getattr__(name):
    if not name[:1].isupper():
        raise AttributeError(name)
    return type(name, (BaseModel,), {})
