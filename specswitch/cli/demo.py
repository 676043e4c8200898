"""``specswitch demo``: a real server on the CPU that switches, shown and checked."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console

from specswitch.cpu_engine.releases import DEFAULT_MODELS, Release, installed_release, release
from specswitch.cpu_engine.server import ServerFailed

_PREFERRED = ("eagle3-v2", "eagle3-topk1")
_WIDTH_WITHOUT_TERMINAL = 110
_DIRECTORY = click.Path(file_okay=False, path_type=Path)


@click.command()
@click.option("--algorithm", metavar="NAME", help="The speculative mode; a wrong name lists those there are.")
@click.option("--release", "version", metavar="VERSION", help="The SGLang release. Default: the one installed here.")
@click.option("--port", type=click.IntRange(1, 65535), help="Where the servers listen. Default: any free port.")
@click.option("--seconds", type=click.FloatRange(min=5), help="How long the load lasts. Default: 58.")
@click.option("--models", type=_DIRECTORY, default=DEFAULT_MODELS, help="The models. Default: the embedded ones.")
@click.option(
    "--out",
    type=_DIRECTORY,
    default=Path("demo-out"),
    show_default=True,
    help="Where report.json, report.png and the servers' logs go.",
)
def demo(
    algorithm: str | None, version: str | None, port: int | None, seconds: float | None, models: Path, out: Path
) -> None:
    """Watch a server switch while its load rises and falls.

    Runs the real SGLang on the CPU with a tiny model: first a plain server for the right answers, then one with
    --enable-specswitch.  Exits with 0 if every answer of the second equals the first's and the server switched
    both ways, with 1 if not.
    """
    try:
        import httpx

        from specswitch.demo import picture, run
        from specswitch.demo.load import ServerError
        from specswitch.demo.screen import Screen, succeeded
    except ImportError as error:
        raise click.ClickException(
            f"The demo needs the package {error.name}, which is not installed here: pip install 'specswitch[demo]'."
        ) from error
    chosen, python = _release_and_python(version)
    mode = algorithm or next(name for name in _PREFERRED if name in chosen.modes)
    try:
        speculates = bool(chosen.mode(mode).worker)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if not speculates:
        raise click.UsageError(f"{mode} does not speculate, so there is nothing to switch; choose another --algorithm.")
    out.mkdir(parents=True, exist_ok=True)
    settings = run.Settings(chosen, python, mode, models, out, port, seconds or run.PLAN_SECONDS)
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH_WITHOUT_TERMINAL)
    with Screen(console, settings.seconds) as screen:
        try:
            report = run.run(settings, screen)
        except ServerFailed as error:
            raise click.ClickException(str(error)) from error
        except (httpx.HTTPError, ServerError) as error:
            raise click.ClickException(
                f"A server failed under way ({type(error).__name__}: {error}); its log in {out} says why."
            ) from error
        report.write_json(out / "report.json")
        picture.draw(report, out / "report.png")
        screen.report(report)
    console.print(f"Written: {out / 'report.json'}, {out / 'report.png'} and the logs of both servers.")
    sys.exit(0 if succeeded(report) else 1)


def _release_and_python(version: str | None) -> tuple[Release, Path]:
    """The release and the Python it is installed for: this one, or that of the environment beside this one."""
    try:
        if version is None:
            return installed_release(), Path(sys.executable)
        wanted = release(version)
    except RuntimeError as error:
        raise click.UsageError(str(error)) from error
    if _is_installed_here(wanted):
        return wanted, Path(sys.executable)
    python = Path(sys.prefix).parent / wanted.version / "bin" / "python"
    if not python.exists():
        raise click.UsageError(
            f"SGLang {version} is not installed beside this environment: "
            f"run `make setup RELEASES={version}` and try again."
        )
    return wanted, python


def _is_installed_here(wanted: Release) -> bool:
    try:
        return installed_release() == wanted
    except RuntimeError:
        return False
