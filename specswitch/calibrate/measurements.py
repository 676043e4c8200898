"""What a calibration has measured, as it is kept between runs, and the profile made of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, linear_regression, median

import msgspec

from specswitch.calibrate.fit import Measured, fit_curve
from specswitch.errors import CalibrationError
from specswitch.profile import Prefill, Profile, ProfileKey, Switching
from specswitch.signals import Mode


class Window(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Decode steps of one mode, batch size and context, timed from outside."""

    mode: Mode
    batch_size: int
    context_tokens: float
    """KV tokens of the whole batch, midway."""
    seconds: float
    """Of one step."""
    steps: int
    accept_length: float | None = None


class Switched(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One change of mode under load, as the server reports it."""

    to: Mode
    seconds: float
    tokens_caught_up: int


class Measurements(msgspec.Struct, forbid_unknown_fields=True):
    """All of one server, or of several that were started alike."""

    key: ProfileKey
    windows: list[Window] = []
    switches: list[Switched] = []

    def add(self, more: Measurements) -> None:
        """Take in what another run has measured.

        Raises:
            CalibrationError: it was measured on another kind of server.
        """
        if more.key != self.key:
            raise CalibrationError(
                "The measurements kept so far are of another model, GPU, release or choice of flags:"
                " keep those of each in a file of its own."
            )
        self.windows += more.windows
        self.switches += more.switches

    def missing(self) -> list[str]:
        """The modes of which nothing has been measured."""
        measured = {window.mode for window in self.windows}
        return [mode.value for mode in (Mode.PLAIN, Mode.SPECULATIVE) if mode not in measured]


def load(path: Path) -> Measurements:
    """Raises :class:`CalibrationError` where the file cannot be used."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Measurements)
    except OSError as error:
        raise CalibrationError(f"{path} cannot be read ({error.strerror}): correct the path.") from None
    except msgspec.DecodeError as error:
        raise CalibrationError(
            f"{path} holds no measurements of 'specswitch calibrate' ({str(error).rstrip('.')}): choose another file."
        ) from None


def save(measurements: Measurements, path: Path) -> None:
    """Raises :class:`CalibrationError` where the file cannot be written."""
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(measurements), indent=2) + b"\n")
    except OSError as error:
        raise CalibrationError(f"{path} cannot be written ({error.strerror}): choose another path.") from None


def profile_of(measurements: Measurements, accept_length: float | None = None) -> Profile:
    """The profile, with ``accept_length`` to start from, or the mean of what was seen.

    Raises:
        CalibrationError: a mode has not been measured.
    """
    missing = measurements.missing()
    if missing:
        raise CalibrationError(
            f"Nothing was measured in {' and '.join(missing)}, and a profile needs both modes:"
            " calibrate a server of that mode into the same measurements file."
        )
    windows = {
        mode: [
            Measured(window.batch_size, window.context_tokens, window.seconds)
            for window in measurements.windows
            if window.mode is mode
        ]
        for mode in (Mode.PLAIN, Mode.SPECULATIVE)
    }
    seen = [window.accept_length for window in measurements.windows if window.accept_length is not None]
    switching = fit_switching(measurements.switches)
    return Profile(
        key=measurements.key,
        source=_source(measurements),
        plain=fit_curve(windows[Mode.PLAIN]),
        speculative=fit_curve(windows[Mode.SPECULATIVE]),
        switching=switching,
        prefill=Prefill(switching.restart_seconds, switching.catch_up_seconds_per_token),
        accept_length=max(1.0, round(accept_length or (fmean(seen) if seen else 1.0), 3)),
    )


def fit_switching(switches: Sequence[Switched]) -> Switching:
    """The drain is the median, the return a line over the tokens caught up; what was not measured costs nothing."""
    drains = [switch.seconds for switch in switches if switch.to is Mode.PLAIN]
    returns = [(switch.tokens_caught_up, switch.seconds) for switch in switches if switch.to is Mode.SPECULATIVE]
    drain = median(drains) if drains else 0.0
    if len({tokens for tokens, _ in returns}) < 2:
        return Switching(drain, median(seconds for _, seconds in returns) if returns else 0.0, 0.0)
    slope, intercept = linear_regression(*zip(*returns, strict=True))
    if slope <= 0.0:
        return Switching(drain, median(seconds for _, seconds in returns), 0.0)
    return Switching(drain, max(0.0, intercept), slope)


def _source(measurements: Measurements) -> str:
    sizes = sorted({window.batch_size for window in measurements.windows})
    parts = [f"specswitch calibrate, batch sizes {sizes[0]} to {sizes[-1]}, {len(measurements.windows)} windows."]
    contexts: dict[tuple[Mode, int], set[float]] = {}
    for window in measurements.windows:
        contexts.setdefault((window.mode, window.batch_size), set()).add(window.context_tokens)
    if all(len(found) < 2 for found in contexts.values()):
        parts.append("One context length: the cost of context is not known and taken to be 0.")
    if measurements.switches:
        parts.append("A switch's seconds include the step that was under way. Prefill is taken to be a catch-up.")
    else:
        parts.append("No switch was measured: switches and prefills are taken to cost nothing.")
    return " ".join(parts)
