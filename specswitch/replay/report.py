"""Outcomes as a table, as JSON and as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from specswitch.errors import ReplayError
from specswitch.replay.run import Outcome

COLOURS = {"goodput": "#1b7837", "watermark": "#e08214", "always": "#2166ac", "never": "#b2182b", "oracle": "#888888"}


def compared(outcomes: Mapping[str, Outcome]) -> dict[str, dict[str, float]]:
    """Per contender its tokens per second over the oracle's, and over the better of always and never, where known."""
    rates = {name: outcome.tokens_per_second for name, outcome in outcomes.items()}
    static = max((rates[name] for name in ("always", "never") if name in rates), default=None)
    oracle = rates.get("oracle")
    return {
        name: {
            **({"of_oracle": rate / oracle} if oracle else {}),
            **({"of_better_static": rate / static} if static else {}),
        }
        for name, rate in rates.items()
    }


def table(title: str, outcomes: Mapping[str, Outcome]) -> Table:
    """One row per contender."""
    shown = Table(
        "",
        "tokens/s",
        "of oracle",
        "of better static",
        "ms/token",
        "plain steps",
        "switches",
        title=title,
        min_width=90,
    )
    for column in shown.columns[1:]:
        column.justify = "right"
    for name, ratios in compared(outcomes).items():
        outcome = outcomes[name]
        shown.add_row(
            name,
            f"{outcome.tokens_per_second:,.0f}",
            f"{ratios['of_oracle']:.3f}" if "of_oracle" in ratios else "",
            f"{ratios['of_better_static']:.3f}" if "of_better_static" in ratios else "",
            f"{1e3 * outcome.time_per_token:.2f}",
            f"{outcome.plain_share:.0%}",
            str(outcome.switches),
            style="bold" if name == "goodput" else None,
        )
    return shown


def as_dict(outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    """JSON-able; without the timelines."""
    ratios = compared(outcomes)
    return {
        name: {
            "tokens_per_second": round(outcome.tokens_per_second, 1),
            **{key: round(value, 4) for key, value in ratios[name].items()},
            "tokens": round(outcome.tokens),
            "seconds": round(outcome.seconds, 3),
            "time_per_token_ms": round(1e3 * outcome.time_per_token, 3),
            "plain_share": round(outcome.plain_share, 4),
            "switches": outcome.switches,
            "reasons": outcome.reasons if name != "oracle" else [],
        }
        for name, outcome in outcomes.items()
    }


def draw(title: str, outcomes: Mapping[str, Outcome], path: Path) -> None:
    """Write a picture: the load and goodput's mode, the throughput of all, and their totals.

    Raises:
        ReplayError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ReplayError(
            "The picture needs matplotlib, which is not installed: install it with 'pip install specswitch[demo]'"
            " or leave --out away."
        ) from None
    figure = Figure(figsize=(10, 8), layout="constrained")
    load, rate, total = figure.subplots(3, 1, height_ratios=[1, 1.2, 0.7])
    figure.suptitle(title)

    followed = outcomes.get("goodput") or next(iter(outcomes.values()))
    seconds = [slot["seconds"] for slot in followed.timeline]
    load.plot(seconds, [slot["batch_size"] for slot in followed.timeline], color="black", label="decode batch")
    load.set_ylabel(f"decode batch ({followed.contender})")
    load.set_ylim(bottom=0)
    for start, end in _plain_spans(followed):
        load.axvspan(start, end, color=COLOURS["never"], alpha=0.15, lw=0, label="_plain")
    load.set_title(f"shaded: {followed.contender} decodes plain", loc="left", fontsize="medium")
    accept = load.twinx()
    accept.plot(seconds, [slot["accept_length"] for slot in followed.timeline], color="tab:purple", ls="--")
    accept.set_ylabel("accept length of the text", color="tab:purple")
    accept.set_ylim(bottom=1)

    for name, outcome in outcomes.items():
        rate.plot(
            [slot["seconds"] for slot in outcome.timeline],
            [slot["tokens_per_second"] for slot in outcome.timeline],
            color=COLOURS.get(name),
            label=name,
            lw=2.0 if name == "goodput" else 1.0,
            ls=":" if name == "oracle" else "-",
            zorder=3 if name in ("goodput", "oracle") else 2,
        )
    rate.set_xlabel("seconds")
    rate.set_ylabel("tokens per second")
    rate.set_ylim(bottom=0)
    rate.legend(ncols=len(outcomes), fontsize="small")

    names = list(outcomes)
    bars = total.barh(
        names, [outcomes[name].tokens_per_second for name in names], color=[COLOURS.get(name) for name in names]
    )
    total.bar_label(bars, labels=[f"{outcomes[name].tokens_per_second:,.0f}" for name in names], padding=3)
    total.invert_yaxis()
    total.margins(x=0.1)
    total.set_xlabel("tokens per second over the whole load")
    figure.savefig(path, dpi=110)


def _plain_spans(outcome: Outcome) -> list[tuple[float, float]]:
    spans: list[tuple[float, float]] = []
    start = 0.0
    for slot in outcome.timeline:
        if slot["plain"]:
            if spans and spans[-1][1] == start:
                spans[-1] = (spans[-1][0], slot["seconds"])
            else:
                spans.append((start, slot["seconds"]))
        start = slot["seconds"]
    return spans
