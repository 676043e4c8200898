"""Tables and a plot of what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]


def speeds(
    rows: Sequence[Row], key: str = "steady_tok_s", of: Callable[[Sequence[float]], float] = statistics.median
) -> dict[tuple[str, int], float]:
    """One value of all repeats, by (server, concurrency)."""
    found: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        value = _verify_steps(row) if key == "verify_steps_s" else row.get(key)
        if row["kind"] == "speed" and value:
            found.setdefault((_label(row), row["concurrency"]), []).append(value)
    return {place: of(values) for place, values in found.items()}


def _verify_steps(row: Row) -> float | None:
    """Steps per second where all were speculative; simulated acceptance is drawn at random, which steps are not."""
    if not row.get("accept_length") or not row.get("steady_tok_s") or row.get("plain_share"):
        return None
    return float(row["steady_tok_s"] / row["accept_length"] / row["concurrency"])


def _label(row: Row) -> str:
    """The server, the mode that it was pinned to, and the content of its prompts where that is not random."""
    content = row.get("content", "random")
    parts = [row["server"], row.get("pin", ""), "" if content == "random" else content]
    return ", ".join(part for part in parts if part)


def table(rows: Sequence[Row], compare: Mapping[str, str]) -> str:
    """Markdown: tokens per second, and the ratio to the server that each is compared with."""
    parts = []
    for title, key, of in (
        ("Steady decode, output tokens per second (ratio), medians of the repeats", "steady_tok_s", statistics.median),
        ("The best of the repeats: what else the host does only slows", "steady_tok_s", max),
        ("Verify steps per second: steady decode over accept length and requests", "verify_steps_s", statistics.median),
        ("End to end, prefill included", "end_to_end_tok_s", statistics.median),
        ("Time per output token of one request, ms", "token_latency_ms_p50", statistics.median),
        ("99th percentile of the gap between chunks, ms", "chunk_gap_ms_p99", statistics.median),
        ("99th percentile of the time between tokens, ms", "token_gap_ms_p99", statistics.median),
    ):
        cells = speeds(rows, key, of)
        if not cells:
            continue
        levels = sorted({level for _, level in cells})
        names = list(dict.fromkeys(name for name, _ in cells))
        lines = [f"{title}\n", "| server | " + " | ".join(map(str, levels)) + " |", "|---" * (len(levels) + 1) + "|"]
        for name in names:
            line = [f"| {name}"]
            for level in levels:
                value, base = cells.get((name, level)), cells.get((compare.get(name, ""), level))
                ratio = f" ({value / base:.3f})" if value and base else ""
                line.append(f"{_figure(value)}{ratio}" if value else "")
            lines.append(" | ".join(line) + " |")
        parts.append("\n".join(lines))
    parts += [_noise(rows), _loads(rows, compare)]
    parts += [_list(rows, kind) for kind in ("switch", "accuracy")]
    return "\n\n".join(part for part in parts if part)


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def _noise(rows: Sequence[Row]) -> str:
    lines = []
    by_place: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        if row["kind"] == "speed" and row.get("steady_tok_s"):
            by_place.setdefault((_label(row), row["concurrency"]), []).append(row["steady_tok_s"])
    for (name, level), values in by_place.items():
        if len(values) > 1:
            lines.append(f"| {name} | {level} | {max(values) / min(values) - 1:.2%} |")
    head = ["Repeats: largest over smallest\n", "| server | concurrency | spread |", "|---|---|---|"]
    return "\n".join([*head, *lines]) if lines else ""


def _loads(rows: Sequence[Row], compare: Mapping[str, str]) -> str:
    """Ramps and traces: one line each, with the ratio to the server that it is compared with."""
    chosen = [row for row in rows if row["kind"] in ("ramp", "trace")]
    if not chosen:
        return ""
    speeds = {(*_load(row), row["server"]): row["tok_s"] for row in chosen}
    lines = [
        "Loads that change: output tokens per second (ratio)\n",
        "| load | server | tokens/s | ms between tokens, p50 | p99 | switches | share of steps PLAIN |",
        "|---" * 7 + "|",
    ]
    for row in chosen:
        base = speeds.get((*_load(row), compare.get(row["server"], "")))
        ratio = f" ({row['tok_s'] / base:.3f})" if base else ""
        cells = [
            " ".join(filter(None, (row["kind"], row.get("course")))),
            row["server"],
            f"{row['tok_s']:.0f}{ratio}",
            row["token_gap_ms_p50"],
            row["token_gap_ms_p99"],
        ]
        cells += [row.get("transitions", ""), row.get("plain_share", "")]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def _load(row: Row) -> tuple[str, str, int]:
    return row["kind"], row.get("course", ""), row["repeat"]


def _list(rows: Sequence[Row], kind: str) -> str:
    chosen = [row for row in rows if row["kind"] == kind]
    if not chosen:
        return ""
    cells = [item for row in chosen for item in row.items() if not isinstance(item[1], list)]
    keys = list(dict.fromkeys(key for key, _ in cells if key not in ("kind", "error")))
    head = ["| " + " | ".join(keys) + " |", "|---" * len(keys) + "|"]
    lines = ["| " + " | ".join(str(row.get(key, "")) for key in keys) + " |" for row in chosen]
    return "\n".join([f"{kind}\n", *head, *lines])


def plot(rows: Sequence[Row], compare: Mapping[str, str], path: Path) -> None:
    """Throughput over concurrency, and ratios to the compared server below."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    cells = speeds(rows)
    names = list(dict.fromkeys(name for name, _ in cells))
    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(9, 8), height_ratios=(2, 1))
    for name in names:
        levels = sorted(level for owner, level in cells if owner == name)
        ours = name.startswith("specswitch")
        style = {"marker": "o", "linewidth": 2.2} if ours else {"marker": ".", "linestyle": "--"}
        (line,) = above.plot(levels, [cells[name, level] for level in levels], label=name, **style)
        base = compare.get(name)
        both = [level for level in levels if (base, level) in cells]
        if both:
            ratios = [cells[name, level] / cells[base, level] for level in both]
            below.plot(both, ratios, color=line.get_color(), label=f"{name} / {base}", **style)
    above.set(ylabel="steady decode, tokens/s", xscale="log", yscale="log")
    below.set(ylabel="ratio", xlabel="requests in flight")
    below.axhline(1.0, color="grey", linewidth=0.8)
    ticks = sorted({level for _, level in cells})
    below.set_xticks(ticks, map(str, ticks))
    for axes in (above, below):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
