"""``specswitch replay``: what a load would have come to under each policy, by a profile, without a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import track

from specswitch import profile as profiles
from specswitch.config import SwitchConfig
from specswitch.errors import ReplayError, SpecswitchError
from specswitch.profile import Prefill, Profile
from specswitch.replay.load import Load, Over, read_trace, steps
from specswitch.replay.report import as_dict, draw, table
from specswitch.replay.run import CONTENDERS, Outcome, replay
from specswitch.replay.server import Limits, Noise
from specswitch.replay.synthetic import LOADS, VARIANTS

_WIDTH_WITHOUT_TERMINAL = 110
_DEFAULTS = SwitchConfig()
_LIMITS = Limits()


@click.command("replay")
@click.argument("loads", metavar="LOAD...", nargs=-1, required=True)
@click.option(
    "--profile",
    "profile_files",
    metavar="FILE",
    type=click.Path(path_type=Path),
    multiple=True,
    required=True,
    help="What the server is like; may be given more than once.",
)
@click.option(
    "--variant",
    "variants",
    type=click.Choice(sorted(VARIANTS)),
    multiple=True,
    help="Replay on a server made up from each profile as well; may be given more than once.",
)
@click.option(
    "--speed", type=click.FloatRange(min=0, min_open=True), default=1.0, help="Arrivals of a trace, times as fast."
)
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="Replay this much of a trace.")
@click.option(
    "--accept-length",
    metavar="A[,SECONDS:A]...",
    help="The accept length of a trace's text, and from which second on another. Default: the profile's.",
)
@click.option("--contender", "contenders", type=click.Choice(CONTENDERS), multiple=True, help="Default: all of them.")
@click.option("--high-watermark", type=int, default=_DEFAULTS.high_watermark, show_default=True)
@click.option("--low-watermark", type=int, default=_DEFAULTS.low_watermark, show_default=True)
@click.option("--dwell-steps", type=int, default=_DEFAULTS.dwell_steps, show_default=True)
@click.option("--hysteresis", type=float, default=_DEFAULTS.hysteresis, show_default=True)
@click.option("--probe-share", type=float, default=_DEFAULTS.probe_share, show_default=True)
@click.option("--max-running-requests", type=click.IntRange(min=1), default=_LIMITS.running_requests, show_default=True)
@click.option("--kv-tokens", type=click.IntRange(min=1), default=_LIMITS.kv_tokens, show_default=True)
@click.option("--free-prefill", is_flag=True, help="Let prefills take no time, so that decoding alone is compared.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Write outcomes.json and pictures there.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    loads: tuple[str, ...],
    profile_files: tuple[Path, ...],
    variants: tuple[str, ...],
    speed: float,
    minutes: float | None,
    accept_length: str | None,
    contenders: tuple[str, ...],
    high_watermark: int,
    low_watermark: int,
    dwell_steps: int,
    hysteresis: float,
    probe_share: float,
    max_running_requests: int,
    kv_tokens: int,
    free_prefill: bool,
    seed: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Replay LOAD on the server that a profile describes, and compare the policies.

    LOAD is a trace (a CSV of TIMESTAMP, ContextTokens and GeneratedTokens) or one of: ramp, jitter, low, high, turns,
    context.  Nothing is served and no GPU is used: a scheduler is simulated step by step, with SGLang's
    prefill-first order, a limited KV pool, drain and catch-up, and the real policies decide.

    The oracle is no policy that could be had: it knows the true step times and the true accept length, and changes
    the mode before any step at no cost.
    """
    try:
        config = SwitchConfig(
            high_watermark=high_watermark,
            low_watermark=low_watermark,
            dwell_steps=dwell_steps,
            hysteresis=hysteresis,
            probe_share=probe_share,
        )
        servers = _servers(profile_files, variants, free_prefill)
        changes = _accept_length(accept_length) if accept_length else None
        cases = [
            (f"{_title(name, speed)} on {server}", _load(name, profile, speed, minutes, changes), profile)
            for server, profile in servers.items()
            for name in loads
        ]
        results = _run(cases, config, contenders or CONTENDERS, Limits(max_running_requests, kv_tokens), seed)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            for title, outcomes in results.items():
                draw(title, outcomes, out / f"{_file_name(title)}.png")
    except SpecswitchError as error:
        raise click.ClickException(str(error)) from error
    found = {title: as_dict(outcomes) for title, outcomes in results.items()}
    if out is not None:
        (out / "outcomes.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(found, indent=2))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH_WITHOUT_TERMINAL)
    for title, outcomes in results.items():
        console.print(table(title, outcomes))
    if out is not None:
        console.print(f"Pictures and outcomes.json are in {out}.")


def _servers(files: tuple[Path, ...], variants: tuple[str, ...], free_prefill: bool) -> dict[str, Profile]:
    servers = {path.stem: profiles.load(path) for path in files}
    made = {
        f"{name} ({variant})": VARIANTS[variant](profile) for name, profile in servers.items() for variant in variants
    }
    servers |= made
    if free_prefill:
        return {name: msgspec.structs.replace(profile, prefill=Prefill(0.0, 0.0)) for name, profile in servers.items()}
    return servers


def _accept_length(text: str) -> Over:
    first, *later = text.split(",")
    try:
        changes = [(float(since), float(value)) for since, value in (change.split(":") for change in later)]
        return steps(float(first), *changes)
    except ValueError:
        raise ReplayError(
            f"--accept-length is {text!r}, which is not an accept length followed by SECONDS:ACCEPT_LENGTH, separated"
            " by commas: write it like 3.5,60:1.5."
        ) from None


def _load(name: str, profile: Profile, speed: float, minutes: float | None, changes: Over | None) -> Callable[[], Load]:
    if name in LOADS:
        return lambda: LOADS[name](profile)
    if not Path(name).exists():
        raise ReplayError(f"The load {name!r} is neither a file nor one of {', '.join(LOADS)}: correct it.")
    trace = read_trace(Path(name), speed, changes or (lambda now: profile.accept_length), minutes)
    return lambda: replace(trace)


def _title(name: str, speed: float) -> str:
    return name if name in LOADS else f"{Path(name).stem} x{speed:g}"


def _run(
    cases: list[tuple[str, Callable[[], Load], Profile]],
    config: SwitchConfig,
    contenders: tuple[str, ...],
    limits: Limits,
    seed: int,
) -> dict[str, dict[str, Outcome]]:
    """Each contender on each case; progress goes to stderr."""
    runs = [(case, contender) for case in cases for contender in contenders]
    results: dict[str, dict[str, Outcome]] = {title: {} for title, _, _ in cases}
    for (title, load, profile), contender in track(runs, "Replaying", console=Console(stderr=True), transient=True):
        results[title][contender] = replay(contender, load, profile, config, limits=limits, noise=Noise(), seed=seed)
    return results


def _file_name(title: str) -> str:
    return "".join(letter if letter.isalnum() or letter in ".-" else "-" for letter in title)
