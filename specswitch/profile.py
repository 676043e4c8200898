"""A profile: what decode steps and switches cost on one model, GPU, SGLang release and choice of flags.

A JSON file, written by ``specswitch calibrate`` and read by the goodput policy and by ``specswitch replay``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from specswitch.costs import StepPoint, StepTime, SwitchCost
from specswitch.errors import ProfileError

FORMAT = 1

_Count = Annotated[int, Meta(ge=1)]
_Seconds = Annotated[float, Meta(gt=0)]
_SecondsOrNone = Annotated[float, Meta(ge=0)]


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class ProfileKey(_Part, frozen=True):
    """What a profile holds for; on anything else the step times differ.

    None stands for what an older file does not tell, or what the algorithm does not have.
    """

    model: str
    gpu: str
    release: str
    """SGLang's."""
    path: str
    """The worker family, ``v1`` or ``v2``."""
    algorithm: str
    topk: int | None
    num_steps: int | None
    num_draft_tokens: _Count
    page_size: _Count
    tp_size: _Count
    dtype: str
    attention_backend: str
    """Of decode steps."""
    draft_model: str | None = None
    quantization: str | None = None
    """``none`` where SGLang was given none."""
    kv_cache_dtype: str | None = None
    cuda_graphs: bool | None = None
    """Whether decode steps run as CUDA graphs."""


class Point(_Part, frozen=True):
    """A measured decode step."""

    batch_size: _Count
    context_tokens: Annotated[float, Meta(ge=0)]
    """KV tokens of the whole batch."""
    seconds: _Seconds


class Curve(_Part, frozen=True):
    """The step times of one mode."""

    points: Annotated[list[Point], Meta(min_length=1)]
    seconds_per_context_token: _SecondsOrNone

    def step_time(self) -> StepTime:
        """Raises ValueError where the figures contradict each other."""
        points = [StepPoint(point.batch_size, point.context_tokens, point.seconds) for point in self.points]
        return StepTime(points, self.seconds_per_context_token)


class Switching(_Part, frozen=True):
    """Seconds without a token around a change of mode; see :class:`specswitch.costs.SwitchCost`."""

    drain_seconds: _SecondsOrNone
    restart_seconds: _SecondsOrNone
    catch_up_seconds_per_token: _SecondsOrNone

    def cost(self) -> SwitchCost:
        return SwitchCost(self.drain_seconds, self.restart_seconds, self.catch_up_seconds_per_token)


class Prefill(_Part, frozen=True):
    """What a prefill forward takes; the policy does not need it, a replay does."""

    floor_seconds: _SecondsOrNone
    seconds_per_token: _SecondsOrNone


class Profile(_Part, frozen=True, kw_only=True):
    """One file."""

    format: int = FORMAT
    key: ProfileKey
    source: str
    """Where the figures come from, and which of them were not measured."""
    plain: Curve
    speculative: Curve
    switching: Switching
    prefill: Prefill
    accept_length: Annotated[float, Meta(ge=1)]
    """Tokens per request and verify step to start from, before anything has been served."""

    @property
    def longest_accept_length(self) -> float:
        """What a verify step can put out at most: the draft steps, or the draft tokens of an algorithm without
        steps, and the bonus token."""
        key = self.key
        return float(key.num_steps + 1 if key.num_steps is not None else key.num_draft_tokens)


def load(path: Path) -> Profile:
    """Read and check a profile.

    Raises:
        ProfileError: the file cannot be read, is no profile, or its figures contradict each other.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ProfileError(
            f"The profile {path} cannot be read ({error.strerror}): correct the path, or write the file with"
            " 'specswitch calibrate'."
        ) from None
    try:
        form = msgspec.json.decode(content, type=_Form).format
        if form != FORMAT:
            raise ProfileError(
                f"The profile {path} is written in format {form} and this release of specswitch reads format {FORMAT}:"
                " write it again with 'specswitch calibrate'."
            )
        profile = msgspec.json.decode(content, type=Profile)
    except msgspec.DecodeError as error:
        detail = str(error).rstrip(".")
        raise ProfileError(
            f"The profile {path} is not one that specswitch has written ({detail}): write it again with"
            " 'specswitch calibrate'."
        ) from None
    sentence = _contradiction(profile)
    if sentence is not None:
        raise ProfileError(f"The profile {path} contradicts itself ({sentence}): write it again.")
    return profile


def save(profile: Profile, path: Path) -> None:
    """Write ``profile`` where :func:`load` finds it.

    Raises:
        ProfileError: its figures contradict each other, or the file cannot be written.
    """
    sentence = _contradiction(profile)
    if sentence is not None:
        raise ProfileError(f"The profile contradicts itself ({sentence}) and was not written: measure it again.")
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(profile), indent=2) + b"\n")
    except OSError as error:
        raise ProfileError(f"The profile {path} cannot be written ({error.strerror}): choose another path.") from None


SOFT = frozenset({"release", "draft_model", "page_size"})
"""Fields of a key in which a profile may differ from the server: what they change, served steps correct soon."""


def fit(profile: Profile, path: Path, running: ProfileKey) -> str | None:
    """Whether ``profile``, read from ``path``, may be used on a server: a warning, or None where nothing differs.

    Raises:
        ProfileError: it was made for another kind of server.
    """
    found = differences(profile.key, running)
    hard = [sentence for name, sentence in found.items() if name not in SOFT]
    if hard:
        raise ProfileError(
            f"The profile {path} was made for another server ({hard[0]}): calibrate this one, or leave out"
            " --specswitch-profile."
        )
    if found:
        return f"The profile {path} was made for a slightly different server ({'; '.join(found.values())})."
    return None


def differences(profile: ProfileKey, running: ProfileKey) -> dict[str, str]:
    """Where a server is not what the profile was measured on: by field, ``tp_size is 2, not 1``.

    Models count as the same by the last part of their path or name.  A ``dtype`` of ``auto`` is the model's own.
    """
    found = {}
    for name in ProfileKey.__struct_fields__:
        here, there = _comparable(name, getattr(running, name)), _comparable(name, getattr(profile, name))
        untold = (name in _OPTIONAL and there is None) or (name == "dtype" and "auto" in (here, there))
        if here != there and not untold:
            found[name] = f"{name} is {here}, not {there}"
    return found


_OPTIONAL = frozenset({"draft_model", "quantization", "kv_cache_dtype", "cuda_graphs"})
"""Fields that older files do not have."""


def _comparable(name: str, value: Any) -> Any:
    if name in ("model", "draft_model") and value is not None:
        return value.rstrip("/").rpartition("/")[2]
    return value


class _Form(msgspec.Struct):
    format: int


def _contradiction(profile: Profile) -> str | None:
    for name, curve in (("plain", profile.plain), ("speculative", profile.speculative)):
        try:
            curve.step_time()
        except ValueError as error:
            return f"{name}: {error}"
    if profile.accept_length > profile.longest_accept_length:
        return (
            f"its accept length {profile.accept_length} is above {profile.longest_accept_length:g},"
            " the most that a verify step can put out"
        )
    return None
