"""Which profile a scheduler goes by: the file that the operator names, or the one that the server has measured."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from specswitch import profile as profiles
from specswitch.calibrate import cache
from specswitch.config import SwitchConfig
from specswitch.errors import ProfileError
from specswitch.profile import Profile, ProfileKey


class ProfileSource:
    """One server's; ``warn`` hears what an operator should know of the file."""

    def __init__(self, config: SwitchConfig, key: ProfileKey, warn: Callable[[str], None]) -> None:
        self.path = Path(config.profile) if config.profile else cache.path_for(key)
        self._config = config
        self.key = key
        self._warn = warn

    def at_start(self) -> Profile | None:
        """None: no profile is needed, or it has yet to be measured.

        Raises:
            ProfileError: the file that the operator names cannot be used.
        """
        if self._config.policy != "goodput":
            return None
        if self._config.profile:
            return self.read()
        if self._config.calibrate != "auto" or not os.path.exists(self.path):
            return None
        try:
            return self.read()
        except ProfileError as error:
            self._warn(f"{error} It is measured again.")
            return None

    def read(self) -> Profile:
        """The file as it is now.

        Raises:
            ProfileError: it cannot be used.
        """
        profile = profiles.load(self.path)
        warning = profiles.fit(profile, self.path, self.key)
        if warning is not None:
            self._warn(warning)
        return profile
