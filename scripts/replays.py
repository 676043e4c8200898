"""Replay every load on every server there is a profile of, and write docs/benchmarks/replay.md.

    python scripts/replays.py [--trace AzureLLMInferenceTrace_conv.csv] [--out docs/benchmarks]

The trace is Azure's (AzurePublicDataset, CC-BY; Patel et al., Splitwise, ISCA 2024) and not part of this repository.
Without it its rows are left out.  A few minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
import msgspec
from rich.progress import track

from specswitch import profile as profiles
from specswitch.profile import Prefill, Profile
from specswitch.replay.load import Load, OpenLoop, read_trace, steps
from specswitch.replay.report import compared, draw
from specswitch.replay.run import compare, replay
from specswitch.replay.synthetic import LOADS, VARIANTS, random_turns

ROOT = Path(__file__).parents[1]
SHIPPED = sorted((ROOT / "docs" / "benchmarks" / "profiles").glob("*.json"))
PICTURES = [("ramp", "eagle3-chain3"), ("turns", "eagle3-chain3"), ("Azure x6, changing", "eagle3-chain3")]

LOOKING = ["0.5.12.post1-eagle-chain3", "0.5.17-eagle3-chain3", "0.5.17-eagle3-chain3, wins-at-long-context"]
"""The servers on which the mode has to change with the text."""
LOOKS = (4.0, 6.0, 8.0, 12.0, 16.0)
"""Seconds."""
SEEDS = range(8)

Case = tuple[str, str, Callable[[], Load], Profile]
"""Load, server, a fresh load, what the server is like."""

HEAD = """# Replays

What `specswitch replay` makes of every load on every server, written by `scripts/replays.py`. Nothing here was measured
on a GPU: the servers are the [profiles](profiles) and three made up from each of them, and the loads are replayed in
simulated time, as [Goodput](../goodput.md#before-deploying-replay) describes. `oracle` takes the better mode before
every step, at no cost and knowing everything, so that 1 is out of reach wherever the mode has to change.

Per cell: goodput's tokens per second over the oracle's / over those of the better of always and never speculating
(number of switches). The settings are the defaults.
"""


def servers() -> dict[str, Profile]:
    """The shipped profiles, and those made up from them."""
    found = {path.stem.removeprefix("h200-llama8b-"): profiles.load(path) for path in SHIPPED}
    made = {f"{name}, {variant}": change(found[name]) for name in found for variant, change in VARIANTS.items()}
    return found | made


def synthetic() -> Iterator[Case]:
    """Prefills take no time, so that decoding alone is compared."""
    for server, profile in servers().items():
        decoding = msgspec.structs.replace(profile, prefill=Prefill(0.0, 0.0))
        for name, made in LOADS.items():
            yield name, server, partial(made, decoding), decoding


def azure(trace: Path) -> Iterator[Case]:
    """The recorded hour, sped up to where the server is saturated, and the same with the text changing meanwhile."""
    for server, profile in servers().items():
        usual = profile.accept_length
        for name, accept in (
            ("Azure x6", steps(usual)),
            ("Azure x6, changing", steps(3.5, (200, 1.5), (400, 2.5))),
        ):
            yield name, server, partial(fresh, read_trace(trace, 6.0, accept)), profile


def fresh(load: OpenLoop) -> Load:
    """From its first request on."""
    return replace(load)


def page(cells: dict[tuple[str, str], tuple[float, float, int]]) -> str:
    """The table, and below it what falls short of 0.97 of the oracle or 0.99 of the better static."""
    loads = list(dict.fromkeys(load for load, _ in cells))
    rows = [f"| server | {' | '.join(loads)} |", "|---" * (len(loads) + 1) + "|"]
    for server in dict.fromkeys(server for _, server in cells):
        shown = (
            f"{oracle:.3f} / {static:.3f} ({switches})"
            for oracle, static, switches in (cells[load, server] for load in loads)
        )
        rows.append(f"| {server} | {' | '.join(shown)} |")
    short = [
        f"{load} on {server} ({oracle:.3f} / {static:.3f})"
        for (load, server), (oracle, static, _) in cells.items()
        if oracle < 0.97 or static < 0.99
    ]
    tail = f"Of {len(cells)} replays {len(short)} fall short of 0.97 of the oracle or 0.99 of the better static"
    return "\n".join([HEAD, *rows, "", f"{tail}{': ' if short else ''}{'; '.join(short)}.", ""])


LOOKING_HEAD = """## What cannot be known

While a server decodes plainly nothing is drafted, and no policy can know that the text has become easy without looking.
`oracle` knows. What that is worth shows in 240 seconds of 64 requests whose text takes turns as in `turns`, but after
durations drawn at random, 40 seconds on average. Beside goodput stand oracles that have to look: as `oracle`, but while
plain they go by the accept length that they last saw, and at a fixed interval they pay for a return and stay for a
dwell. They know all step times and see in SPECULATIVE at once what the text is like. Changes that come at random leave
nothing better than looking at a fixed interval, so that the best of a row is what could be had there by looking with
all requests. Goodput looks at a sample of them where that costs less, and may do better.

Tokens per second over the oracle's, mean of {count} loads (least).
"""


def looking() -> str:
    """Goodput, and oracles that have to draft to know the accept length."""
    names = ["goodput", *(f"looks every {every:g} s" for every in LOOKS)]
    rows = [f"| server | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    known = servers()
    for server in track(LOOKING, "Looking"):
        profile = msgspec.structs.replace(known[server], prefill=Prefill(0.0, 0.0))
        shares: dict[str, list[float]] = {name: [] for name in names}
        for seed in SEEDS:
            made = partial(random_turns, seed)
            oracle = replay("oracle", made, profile).tokens_per_second
            shares["goodput"].append(replay("goodput", made, profile).tokens_per_second / oracle)
            for name, every in zip(names[1:], LOOKS, strict=True):
                outcome = replay("oracle", made, profile, look_every=every)
                shares[name].append(outcome.tokens_per_second / oracle)
        shown = (f"{sum(found) / len(found):.3f} ({min(found):.3f})" for found in shares.values())
        rows.append(f"| {server} | {' | '.join(shown)} |")
    return "\n".join([LOOKING_HEAD.format(count=len(SEEDS)), *rows, ""])


@click.command()
@click.option(
    "--trace", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Azure's conversation trace."
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=ROOT / "docs" / "benchmarks")
def main(trace: Path | None, out: Path) -> None:
    """Write replay.md and some pictures."""
    cases = [*synthetic(), *(azure(trace) if trace else ())]
    cells: dict[tuple[str, str], tuple[float, float, int]] = {}
    for load, server, made, profile in track(cases, "Replaying"):
        outcomes = compare(made, profile)
        ratios = compared(outcomes)["goodput"]
        cells[load, server] = ratios["of_oracle"], ratios["of_better_static"], outcomes["goodput"].switches
        for pictured, kind in PICTURES:
            if load == pictured and server.endswith(kind):
                draw(f"{load} on {server}", outcomes, out / f"replay-{load.replace(', ', '-').replace(' ', '-')}.png")
    (out / "replay.md").write_text(f"{page(cells)}\n{looking()}", encoding="utf-8")


if __name__ == "__main__":
    main()
