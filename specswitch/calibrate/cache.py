"""Where a server keeps the profile that it has measured at start, one file per :class:`ProfileKey`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from specswitch import profile as profiles
from specswitch.errors import ProfileError
from specswitch.profile import Profile, ProfileKey


def path_for(key: ProfileKey, environ: Mapping[str, str] = os.environ) -> Path:
    """Under ``$XDG_CACHE_HOME/specswitch``, or ``~/.cache/specswitch``: the model's name and a digest of the key."""
    root = environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    digest = hashlib.sha256(msgspec.json.encode(key, order="deterministic")).hexdigest()[:16]
    return Path(root) / "specswitch" / f"{Path(key.model).name or 'model'}-{digest}.json"


def store(profile: Profile, path: Path) -> None:
    """Write ``profile`` as a whole or not at all, since several servers may share the file.

    Raises:
        ProfileError: it cannot be written.
    """
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        profiles.save(profile, beside)
        beside.replace(path)
    except OSError as error:
        raise ProfileError(
            f"The profile {path} cannot be written ({error.strerror}): make its folder writable."
        ) from None
