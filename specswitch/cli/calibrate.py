"""``specswitch calibrate``: measure a running server and write its profile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from specswitch import profile as profiles
from specswitch.calibrate import measurements as kept
from specswitch.calibrate.measurements import Measurements, profile_of
from specswitch.calibrate.show import break_even_table, draw, step_table
from specswitch.calibrate.sweep import Plan, Sweep
from specswitch.client import ServerClient
from specswitch.config import SwitchConfig
from specswitch.engine.graph_sizes import speculative_limit
from specswitch.errors import CalibrationError, SpecswitchError
from specswitch.profile import Profile

_WIDTH_WITHOUT_TERMINAL = 110
_PLAN = Plan()
_FILE = click.Path(dir_okay=False, path_type=Path)


class _Numbers(click.ParamType[tuple[int, ...]]):
    name = "N,N..."

    def convert(
        self, value: str | tuple[int, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if not isinstance(value, str):
            return value
        try:
            numbers = tuple(int(word) for word in value.split(","))
        except ValueError:
            numbers = ()
        if not numbers or min(numbers) < 1:
            self.fail(f"{value!r} is no list of numbers of at least 1, separated by commas", param, ctx)
        return numbers


@click.command()
@click.argument("url", required=False)
@click.option("--api-key", help="What the server was given as --api-key.")
@click.option("--admin-api-key", "admin_key", help="What it was given as --admin-api-key.")
@click.option("--out", type=_FILE, help="Write the profile there.")
@click.option("--measurements", "measurements_file", type=_FILE, help="Keep what was measured there, and add to it.")
@click.option("--profile", "profile_file", type=_FILE, help="Measure nothing, show this profile.")
@click.option("--picture", type=_FILE, help="Draw both curves there (PNG).")
@click.option("--sizes", type=_Numbers(), default=_PLAN.sizes, help="Decode batch sizes. Default: 1 to 256.")
@click.option(
    "--prompt-tokens", type=_Numbers(), default=_PLAN.prompt_tokens, help="Prompt lengths. Default: 128,1024."
)
@click.option("--output-tokens", type=click.IntRange(min=1), default=_PLAN.output_tokens, show_default=True)
@click.option("--window-steps", type=click.IntRange(min=1), default=_PLAN.window_steps, show_default=True)
@click.option("--window-seconds", type=click.FloatRange(min=0), default=_PLAN.window_seconds, show_default=True)
@click.option("--repeat", type=click.IntRange(min=1), default=1, show_default=True, help="Passes over all sizes.")
@click.option("--accept-length", type=click.FloatRange(min=1), help="To start from. Default: what was seen.")
@click.option("--context", type=float, default=512, show_default=True, help="KV tokens per request, for the tables.")
@click.option("--model", help="The name to keep. Default: the server's model path.")
@click.option("--gpu", help="The name to keep. Default: what nvidia-smi says on the server.")
def calibrate(
    url: str | None,
    api_key: str | None,
    admin_key: str | None,
    out: Path | None,
    measurements_file: Path | None,
    profile_file: Path | None,
    picture: Path | None,
    sizes: tuple[int, ...],
    prompt_tokens: tuple[int, ...],
    output_tokens: int,
    window_steps: int,
    window_seconds: float,
    repeat: int,
    accept_length: float | None,
    context: float,
    model: str | None,
    gpu: str | None,
) -> None:
    """Measure the server at URL and write its profile.

    The server must run with --enable-specswitch and serve nothing else meanwhile.  Batches of each size are held in
    both modes while their decode steps are timed; afterwards the server operates as configured again.

    Without URL the profile is made again from --measurements, or read from --profile, and shown.
    """
    try:
        plan = Plan(sizes, prompt_tokens, output_tokens, window_steps, window_seconds)
        client = None if url is None else ServerClient(url, api_key=api_key, admin_key=admin_key)
        profile = _profile(client, measurements_file, profile_file, plan, repeat, accept_length, model, gpu)
        if out is not None:
            profiles.save(profile, out)
        if picture is not None:
            draw(profile, context, picture)
    except SpecswitchError as error:
        raise click.ClickException(str(error)) from error
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH_WITHOUT_TERMINAL)
    console.print(step_table(profile, context))
    console.print(break_even_table(profile, context))


def _profile(
    client: ServerClient | None,
    measurements_file: Path | None,
    profile_file: Path | None,
    plan: Plan,
    repeat: int,
    accept_length: float | None,
    model: str | None,
    gpu: str | None,
) -> Profile:
    if profile_file is not None:
        return profiles.load(profile_file)
    if client is None:
        if measurements_file is None:
            raise CalibrationError("There is nothing to measure or to show: name a URL, --measurements or --profile.")
        return profile_of(kept.load(measurements_file), accept_length)
    measured = _measure(client, plan, repeat, model, gpu)
    if measurements_file is not None:
        if measurements_file.exists():
            earlier = kept.load(measurements_file)
            earlier.add(measured)
            measured = earlier
        kept.save(measured, measurements_file)
    return profile_of(measured, accept_length)


def _check_graphs(status: dict[str, Any], largest: int) -> None:
    """Raises :class:`CalibrationError` where verify steps of ``largest`` requests would run without CUDA graphs."""
    limit = speculative_limit(msgspec.convert(status["config"], SwitchConfig))
    if status["key"]["cuda_graphs"] and limit is not None and largest > limit:
        raise CalibrationError(
            f"The server, as it is configured, has CUDA graphs for verify steps of up to {limit} requests alone, and"
            f" {largest} would be measured without: start it with --specswitch-mode speculative, or lower --sizes."
        )


def _measure(client: ServerClient, plan: Plan, repeat: int, model: str | None, gpu: str | None) -> Measurements:
    measured = Measurements(client.key(gpu, model))
    _check_graphs(client.status(), max(plan.sizes))
    with Console(stderr=True).status("Calibrating") as shown:
        for _ in range(repeat):
            Sweep(client, plan).run(measured, lambda what: shown.update(f"Calibrating: {what}"))
    return measured
