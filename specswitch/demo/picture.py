"""The report as a picture: batch size, throughput and accept length over time, the mode as coloured bands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specswitch.demo.report import Report, Span
from specswitch.signals import Mode

_BANDS = {Mode.SPECULATIVE.value: "#dbe9f6", Mode.DRAINING.value: "#c9c9c9", Mode.PLAIN.value: "#fde3c4"}
_INK = {"batch": "#1f4e79", "flight": "#8a8a8a", "tokens": "#2e7d32", "accept": "#6a3d9a", "watermark": "#b03a2e"}
_THROUGHPUT_WINDOW = 1.0
"""Seconds."""


def draw(report: Report, path: Path) -> None:
    """Write the picture as a PNG."""
    figure = Figure(figsize=(10, 6.6), layout="constrained")
    axes = figure.subplots(3, 1, sharex=True, gridspec_kw={"height_ratios": [3, 2, 2]})
    spans = [span for span in report.spans() if span.end > span.start]
    for axis in axes:
        for span in spans:
            axis.axvspan(span.start, span.end, color=_BANDS[span.mode], linewidth=0)
        for event in report.transitions:
            if event["to"] != Mode.DRAINING.value:
                axis.axvline(event["seconds"], color="white", linewidth=1.2)
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(x=0)
    _draw_batch_size(axes[0], report)
    _draw_throughput(axes[1], report)
    _draw_accept_length(axes[2], report, spans)
    _name_modes(axes[0], spans, report.end)
    axes[2].set_xlabel("seconds")
    axes[2].set_xlim(0, report.end)
    figure.suptitle(title(report), fontsize=11)
    figure.savefig(path, dpi=110)


def title(report: Report) -> str:
    """What ran, and whether the answers were right."""
    active = report.active
    worker = f"{active['worker']}, {'overlap' if active['overlap'] else 'no overlap'}"
    if active["topk"]:
        worker += f", topk {active['topk']}"
    total, different = len(report.answers), len(report.differences)
    verdict = "all equal to the plain server's" if not different else f"{different} differ from the plain server's"
    return f"SGLang {active['release']} on the CPU, {active['algorithm']} ({worker}): {total} answers, {verdict}"


def _draw_batch_size(axis: Any, report: Report) -> None:
    seconds = [sample.seconds for sample in report.samples]
    axis.step(
        seconds,
        [sample.in_flight for sample in report.samples],
        where="post",
        color=_INK["flight"],
        linewidth=1,
        label="requests in flight",
    )
    axis.step(
        seconds,
        [sample.batch_size for sample in report.samples],
        where="post",
        color=_INK["batch"],
        linewidth=1.8,
        label="decode batch size",
    )
    config = report.active["config"]
    for name in ("high", "low"):
        level = config[f"{name}_watermark"]
        axis.axhline(level, color=_INK["watermark"], linestyle=(0, (4, 3)), linewidth=1)
        axis.annotate(
            f"{name} watermark {level}",
            (1, level),
            xycoords=("axes fraction", "data"),
            xytext=(-3, 2),
            textcoords="offset points",
            ha="right",
            fontsize=8,
            color=_INK["watermark"],
        )
    axis.set_ylabel("requests")
    axis.set_ylim(0, max(sample.in_flight for sample in report.samples) * 1.25 + 0.5)
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.legend(loc="upper left", bbox_to_anchor=(0, 0.92), fontsize=8, framealpha=0.8)


def _draw_throughput(axis: Any, report: Report) -> None:
    half = _THROUGHPUT_WINDOW / 2
    moments = [sample.seconds for sample in report.samples if half <= sample.seconds <= report.end - half]
    axis.plot(moments, [report.throughput(at - half, at + half) for at in moments], color=_INK["tokens"], linewidth=1.5)
    axis.set_ylabel("tokens/s received")
    axis.set_ylim(bottom=0)


def _draw_accept_length(axis: Any, report: Report, spans: list[Span]) -> None:
    """Drawn where the server speculates: plain steps have none."""
    for span in spans:
        if span.mode != Mode.SPECULATIVE.value:
            continue
        inside = [sample for sample in report.samples if span.start <= sample.seconds < span.end]
        seen = [(sample.seconds, sample.accept_length) for sample in inside if sample.accept_length is not None]
        if seen:
            axis.plot(*zip(*seen, strict=True), color=_INK["accept"], linewidth=1.5)
    if report.accept_length is not None:
        axis.annotate(
            f"{report.accept_length:.2f} tokens over all verify steps",
            (1, 1),
            xycoords="axes fraction",
            xytext=(-3, -3),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=8,
            color=_INK["accept"],
        )
    axis.set_ylabel("accept length")
    axis.set_ylim(1, max([2.0, *(sample.accept_length or 0 for sample in report.samples)]) + 0.5)


def _name_modes(axis: Any, spans: list[Span], end: float) -> None:
    for span in spans:
        if span.end - span.start > 0.07 * end:
            middle = (span.start + span.end) / 2
            axis.annotate(
                span.mode,
                (middle, 1),
                xycoords=("data", "axes fraction"),
                xytext=(0, -3),
                textcoords="offset points",
                ha="center",
                va="top",
                fontsize=8,
                color="#444444",
            )
