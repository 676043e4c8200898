"""Flags, environment and file, resolved to one frozen :class:`SwitchConfig`.

Settings are declared once, as fields of :class:`SwitchConfig`.  The flag ``--specswitch-high-watermark``,
the variable ``SPECSWITCH_HIGH_WATERMARK`` and the file key ``high_watermark`` follow from the field's name.
"""

from __future__ import annotations

import argparse
import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_type_hints

import msgspec
import yaml
from msgspec import Meta

from specswitch.errors import ConfigError
from specswitch.signals import SAMPLING_FEATURES

ENABLE_FLAG = "--enable-specswitch"
CONFIG_FLAG = "--specswitch-config"
ENABLE_VARIABLE = "SPECSWITCH_ENABLE"
CONFIG_VARIABLE = "SPECSWITCH_CONFIG"
RESOLVED_VARIABLE = "SPECSWITCH_RESOLVED"
"""Carries a resolved configuration, as JSON, from the launcher to the scheduler processes."""

_PREFIX = "SPECSWITCH_"

OperatingMode = Literal["auto", "observe", "plain", "speculative"]


class SwitchConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an operator has decided.  Raises :class:`ConfigError` on a value that is not allowed."""

    high_watermark: Annotated[
        int,
        Meta(ge=1, description="The decode batch size at or above which the server leaves speculative decoding."),
    ] = 32
    low_watermark: Annotated[
        int,
        Meta(
            ge=0,
            description="The decode batch size at or below which the server returns to speculative decoding. "
            "Must be lower than --specswitch-high-watermark.",
        ),
    ] = 24
    policy: Annotated[
        Literal["watermark", "goodput"],
        Meta(
            description="What 'auto' goes by. 'watermark' is the decode batch size. 'goodput' is the tokens per second "
            "that each mode would put out, from a profile and what has been served; it goes by "
            "--specswitch-profile, or by what the server measures at start."
        ),
    ] = "watermark"
    profile: Annotated[
        str,
        Meta(description="The profile of this model, GPU, SGLang release and flags, as 'specswitch calibrate' writes."),
    ] = ""
    calibrate: Annotated[
        Literal["auto", "always", "never"],
        Meta(
            description="Whether a server with the goodput policy and without a profile measures one while it warms "
            "up. 'auto' does it once and keeps the profile in ~/.cache/specswitch, 'always' at each start."
        ),
    ] = "auto"
    hysteresis: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="The share by which the other mode's goodput must be higher before the goodput policy "
            "counts it as an advantage.",
        ),
    ] = 0.005
    probe_share: Annotated[
        float,
        Meta(
            ge=0,
            lt=0.01,
            description="The share of decode time that the goodput policy may spend at worst on finding out how the "
            "other mode would do now. 0 never tries.",
        ),
    ] = 0.005
    dwell_steps: Annotated[
        int,
        Meta(ge=1, description="The least number of decode steps in a mode before the next switch."),
    ] = 32
    mode: Annotated[
        OperatingMode,
        Meta(
            description="'auto' switches with the load. 'observe' decides and logs as 'auto' would, but never acts. "
            "'plain' and 'speculative' pin the mode."
        ),
    ] = "auto"
    draft_kv: Annotated[
        Literal["catch-up", "cold"],
        Meta(
            description="How the draft's KV cache is brought back on return to speculative decoding. "
            "'catch-up' writes it for the tokens decoded meanwhile before drafting resumes. "
            "'cold' leaves it unwritten, which lowers the accept length."
        ),
    ] = "catch-up"
    max_pause_ms: Annotated[
        int,
        Meta(
            ge=1,
            description="The longest that bringing back the draft's KV cache may hold up the running requests at once, "
            "in milliseconds. A longer catch-up is split, with decode steps in between.",
        ),
    ] = 50
    draft_kv_budget: Annotated[
        int,
        Meta(
            ge=0,
            description="Device memory, in MiB on each GPU, for hidden states that the target puts out while the "
            "server decodes plainly. For tokens whose hidden states are kept, the draft alone writes its KV cache: the "
            "target does not run again. 0 keeps none.",
        ),
    ] = 0
    plain_overlap: Annotated[
        Literal["on", "off"],
        Meta(
            description="Whether a server whose speculative worker runs without overlap scheduling "
            "(SGLang 0.5.12 and older) uses it while decoding plainly."
        ),
    ] = "on"
    log_format: Annotated[
        Literal["console", "json"],
        Meta(description="The format of the specswitch log events on stderr."),
    ] = "console"
    on_mismatch: Annotated[
        Literal["refuse", "serve-unswitched"],
        Meta(
            description="What to do if the installed SGLang lacks something that specswitch relies on. "
            "'refuse' exits before the model is loaded. 'serve-unswitched' serves without switching."
        ),
    ] = "refuse"
    plain_for: Annotated[
        frozenset[str],
        Meta(
            description=f"Sampling features, separated by commas, out of {', '.join(sorted(SAMPLING_FEATURES))}. "
            "While a running request uses one of them, the batch is decoded plain."
        ),
    ] = frozenset()

    def __post_init__(self) -> None:
        for setting in _settings().values():
            value = setting.convert(_Given(getattr(self, setting.name), setting.name))
            msgspec.structs.force_setattr(self, setting.name, value)
        _check_watermarks(
            _Given(self.high_watermark, "high_watermark"),
            _Given(self.low_watermark, "low_watermark"),
        )
        _check_profile(
            _Given(self.policy, "policy"), _Given(self.profile, "profile"), _Given(self.calibrate, "calibrate")
        )

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; ``plain_for`` becomes a sorted list."""
        fields: dict[str, Any] = msgspec.to_builtins(self, order="deterministic")
        return fields


class _Given(NamedTuple):
    value: Any
    source: str
    """The place as an operator would name it: a flag, a variable, or a key and its file."""


@dataclass(frozen=True)
class _Setting:
    name: str
    type: Any
    help: str
    allowed: str
    metavar: str

    @property
    def flag(self) -> str:
        return "--" + self.argument.replace("_", "-")

    @property
    def argument(self) -> str:
        return f"specswitch_{self.name}"

    @property
    def variable(self) -> str:
        return _PREFIX + self.name.upper()

    def convert(self, given: _Given) -> Any:
        """The value in the field's type, text included; raises :class:`ConfigError`."""
        value = given.value
        if self.name == "plain_for" and isinstance(value, str):
            value = [word.strip() for word in value.split(",") if word.strip()]
        try:
            value = msgspec.convert(value, self.type, strict=not isinstance(value, str))
        except msgspec.ValidationError:
            raise self._refusal(given) from None
        if self.name == "plain_for" and not value <= SAMPLING_FEATURES:
            raise self._refusal(given)
        return value

    def _refusal(self, given: _Given) -> ConfigError:
        return ConfigError(
            f"{given.source} is {given.value!r}, which is not {self.allowed}: correct it or leave it out."
        )


@cache
def _settings() -> dict[str, _Setting]:
    hints = get_type_hints(SwitchConfig, include_extras=True)
    return {name: _setting(name, hints[name]) for name in SwitchConfig.__struct_fields__}


def _setting(name: str, hint: Any) -> _Setting:
    plain, meta = get_args(hint)
    if plain is int:
        allowed, metavar = f"an integer of at least {meta.ge}", "N"
    elif plain is float:
        upto = f"less than {meta.lt}" if meta.lt is not None else f"at most {meta.le}"
        allowed, metavar = f"a number of at least {meta.ge} and {upto}", "SHARE"
    elif plain is str:
        allowed, metavar = "a path", "FILE"
    elif plain == frozenset[str]:
        allowed, metavar = f"a comma-separated choice from {', '.join(sorted(SAMPLING_FEATURES))}", "FEATURES"
    else:
        choices = get_args(plain)
        allowed, metavar = f"one of {', '.join(choices)}", f"{{{','.join(choices)}}}"
    return _Setting(name, hint, meta.description, allowed, metavar)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add specswitch's flags in a group of their own.  A flag that is not given stays None."""
    group = parser.add_argument_group("specswitch")
    group.add_argument(
        ENABLE_FLAG,
        action="store_true",
        default=None,
        help="Switch the running server between speculative and plain decoding. Needs --speculative-algorithm. "
        f"{ENABLE_VARIABLE}=1 does the same; {ENABLE_VARIABLE}=0 turns specswitch off whatever the flags say.",
    )
    group.add_argument(
        CONFIG_FLAG,
        metavar="FILE",
        default=None,
        help="Read the settings of specswitch from a YAML or JSON file. "
        f"Flags and {_PREFIX}* variables win over the file.",
    )
    for name, default in _DEFAULT.as_dict().items():
        setting = _settings()[name]
        group.add_argument(
            setting.flag,
            metavar=setting.metavar,
            default=None,
            help=f"{setting.help} Default: {'none' if default in ('', []) else default}.",
        )


def load(args: argparse.Namespace | None, environ: Mapping[str, str]) -> SwitchConfig | None:
    """Resolve the configuration; None when specswitch is not enabled.

    A flag wins over a variable, a variable over the file, the file over the default.  A variable set to
    an empty text counts as not set.  Raises :class:`ConfigError`.
    """
    variables = {name: value for name, value in environ.items() if name.startswith(_PREFIX) and value}
    flags = _from_flags(args)
    file_flag = getattr(args, "specswitch_config", None)
    enabled = _enabled_by_variable(variables)
    if enabled is None:
        enabled = bool(getattr(args, "enable_specswitch", None))
        idle = [given.source for given in flags.values()] + ([CONFIG_FLAG] if file_flag else [])
        if idle and not enabled:
            raise ConfigError(
                f"{idle[0]} has no effect because specswitch is not enabled: add {ENABLE_FLAG} or leave it out."
            )
    if not enabled:
        return None

    file = file_flag or variables.get(CONFIG_VARIABLE)
    given = {name: _Given(getattr(_DEFAULT, name), "the default") for name in _settings()}
    given |= (_from_file(Path(file)) if file else {}) | _from_variables(variables) | flags
    values = {name: _settings()[name].convert(where) for name, where in given.items()}
    _check_watermarks(*(given[name]._replace(value=values[name]) for name in ("high_watermark", "low_watermark")))
    _check_profile(*(given[name]._replace(value=values[name]) for name in ("policy", "profile", "calibrate")))
    return SwitchConfig(**values)


def to_environ(config: SwitchConfig) -> dict[str, str]:
    """The variable by which a launcher hands its resolved configuration to the processes it starts."""
    return {RESOLVED_VARIABLE: json.dumps(config.as_dict())}


def from_environ(environ: Mapping[str, str]) -> SwitchConfig | None:
    """The inverse of :func:`to_environ`; None when no launcher has handed a configuration down."""
    text = environ.get(RESOLVED_VARIABLE)
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=SwitchConfig)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{RESOLVED_VARIABLE} does not hold a configuration written by this release of specswitch"
            f" ({str(error).rstrip('.')}): unset it, specswitch sets it itself."
        ) from None


def _from_flags(args: argparse.Namespace | None) -> dict[str, _Given]:
    values = {name: getattr(args, setting.argument, None) for name, setting in _settings().items()}
    return {name: _Given(value, _settings()[name].flag) for name, value in values.items() if value is not None}


def _enabled_by_variable(variables: Mapping[str, str]) -> bool | None:
    word = variables.get(ENABLE_VARIABLE)
    if word is None:
        return None
    if word not in ("0", "1"):
        raise ConfigError(f"{ENABLE_VARIABLE} is {word!r}, which is neither 1 (on) nor 0 (off): set it to one of them.")
    return word == "1"


def _from_variables(variables: Mapping[str, str]) -> dict[str, _Given]:
    names = {setting.variable: name for name, setting in _settings().items()}
    known = {*names, ENABLE_VARIABLE, CONFIG_VARIABLE, RESOLVED_VARIABLE}
    for variable in variables:
        if variable not in known:
            raise ConfigError(f"{variable} is not a variable of specswitch: {_instead(variable, known)} or unset it.")
    return {name: _Given(variables[variable], variable) for variable, name in names.items() if variable in variables}


def _from_file(path: Path) -> dict[str, _Given]:
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(
            f"The configuration file {path} cannot be read ({error.strerror}): correct {CONFIG_FLAG}."
        ) from None
    except (ValueError, yaml.YAMLError) as error:
        detail = " ".join(str(error).split())
        raise ConfigError(f"The configuration file {path} is not valid YAML or JSON ({detail}): correct it.") from None
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise ConfigError(
            f"The configuration file {path} holds a {type(content).__name__} instead of settings by name:"
            " write one 'name: value' per line."
        )
    for key in content:
        if key not in _settings():
            raise ConfigError(
                f"Key {key!r} in {path} is not a setting of specswitch: {_instead(str(key), _settings())} or remove it."
            )
    return {key: _Given(value, f"Key {key!r} in {path}") for key, value in content.items()}


def _instead(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"use {close[0]}" if close else f"use one of {', '.join(sorted(known))}"


def _check_watermarks(high: _Given, low: _Given) -> None:
    if low.value >= high.value:
        raise ConfigError(
            f"The low watermark {low.value} ({low.source}) is not lower than the high watermark {high.value}"
            f" ({high.source}): the gap keeps the mode from flapping, so set the low one to {high.value - 1} or less."
        )


def _check_profile(policy: _Given, profile: _Given, calibrate: _Given) -> None:
    if policy.value == "goodput" and not profile.value and calibrate.value == "never":
        raise ConfigError(
            f"The goodput policy ({policy.source}) has no profile to go by and may not measure one"
            f" ({calibrate.source}): name one with --specswitch-profile, written by 'specswitch calibrate'."
        )
    if profile.value and calibrate.value == "always":
        raise ConfigError(
            f"A server that always measures its profile ({calibrate.source}) does not go by the one that"
            f" {profile.source} names: leave one of them out."
        )


_DEFAULT = SwitchConfig()
