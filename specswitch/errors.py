"""Errors that an operator sees.

Each message is one sentence that says what is wrong, why, and what to do about it.
"""

from __future__ import annotations


class SpecswitchError(ValueError):
    """Base of every error that specswitch raises on purpose towards an operator."""


class ConfigError(SpecswitchError):
    """A flag, an environment variable or a configuration file holds a value that cannot be used."""


class UnsupportedError(SpecswitchError):
    """SGLang was asked for a combination (algorithm, worker, parallelism, ...) that specswitch does not switch."""


class ContractError(SpecswitchError):
    """The installed SGLang lacks a function or an attribute that specswitch relies on."""


class ProfileError(SpecswitchError):
    """A profile cannot be read, written or used."""


class ControlError(SpecswitchError):
    """A command to a running server says nothing that can be carried out."""


class ReplayError(SpecswitchError):
    """A load trace cannot be replayed."""


class CalibrationError(SpecswitchError):
    """A server cannot be measured."""
