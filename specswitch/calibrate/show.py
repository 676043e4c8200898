"""What a profile says: break-even points as a table, and both curves as a picture."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from specswitch.costs import StepTime, break_even_accept_length, break_even_batch_size
from specswitch.errors import CalibrationError
from specswitch.profile import Profile

PLAIN_COLOUR = "#b2182b"


def accept_lengths(profile: Profile) -> list[float]:
    """1.5, 2, 2.5 and so on, up to the longest."""
    return [half / 2 for half in range(3, round(2 * profile.longest_accept_length) + 1)][:8]


def break_even_table(profile: Profile, context_per_request: float) -> Table:
    """Per accept length the largest batch at which speculation wins, with so many KV tokens per request."""
    plain, speculative = profile.plain.step_time(), profile.speculative.step_time()
    largest = min(plain.largest, speculative.largest)
    table = Table("accept length", "speculation wins up to batch size", title=f"Context {context_per_request:g} tokens")
    for accept in accept_lengths(profile):
        size = break_even_batch_size(plain, speculative, accept, context_per_request, largest)
        table.add_row(f"{accept:g}", {0: "nowhere", largest: f"{largest} and perhaps beyond"}.get(size, str(size)))
    return table


def step_table(profile: Profile, context_per_request: float) -> Table:
    """Per measured batch size both step times and the accept length at which they break even."""
    plain, speculative = profile.plain.step_time(), profile.speculative.step_time()
    table = Table("batch size", "plain step, ms", "verify step, ms", "break-even accept length")
    for column in table.columns:
        column.justify = "right"
    for size in _sizes(profile):
        context = context_per_request * size
        times = plain.seconds(size, context), speculative.seconds(size, context)
        table.add_row(
            str(size), *(f"{1e3 * seconds:.2f}" for seconds in times), f"{break_even_accept_length(*times):.2f}"
        )
    return table


def draw(profile: Profile, context_per_request: float, path: Path) -> None:
    """Write a picture: step times, and tokens per second at some accept lengths.

    Raises:
        CalibrationError: matplotlib is not installed.
    """
    try:
        from matplotlib import colormaps
        from matplotlib.figure import Figure
    except ImportError:
        raise CalibrationError(
            "The picture needs matplotlib, which is not installed: install it with 'pip install specswitch[demo]'"
            " or leave --picture away."
        ) from None
    plain, speculative = profile.plain.step_time(), profile.speculative.step_time()
    largest = max(_sizes(profile))
    sizes = [max(1, round(largest * part / 100)) for part in range(1, 101)]
    figure = Figure(figsize=(11, 5), layout="constrained")
    times, rates = figure.subplots(1, 2)
    key = profile.key
    figure.suptitle(
        f"{key.model} on {key.gpu}, SGLang {key.release}, {key.algorithm}, {context_per_request:g} tokens each"
    )

    for curve, points, name, colour in (
        (plain, profile.plain.points, "plain step", PLAIN_COLOUR),
        (speculative, profile.speculative.points, "verify step", "#2166ac"),
    ):
        times.plot(sizes, [1e3 * curve.seconds(n, context_per_request * n) for n in sizes], color=colour, label=name)
        shown = [1e3 * curve.seconds(p.batch_size, context_per_request * p.batch_size) for p in points]
        times.plot([p.batch_size for p in points], shown, "o", color=colour, ms=4)
    times.set_ylabel("milliseconds")
    times.set_xlabel("decode batch size")
    times.set_ylim(bottom=0)
    times.legend()

    def rate(curve: StepTime, size: int, accept: float) -> float:
        return accept * size / curve.seconds(size, context_per_request * size)

    rates.plot(sizes, [rate(plain, n, 1.0) for n in sizes], color=PLAIN_COLOUR, lw=2, label="plain")
    shown_lengths = accept_lengths(profile)
    for number, accept in enumerate(shown_lengths):
        blue = colormaps["Blues"](0.35 + 0.6 * number / max(1, len(shown_lengths) - 1))
        rates.plot(sizes, [rate(speculative, n, accept) for n in sizes], color=blue, label=f"accept length {accept:g}")
        size = break_even_batch_size(plain, speculative, accept, context_per_request, largest)
        if 0 < size < largest:
            rates.plot([size], [rate(plain, size, 1.0)], "o", color="black", ms=5, zorder=3)
            rates.annotate(str(size), (size, rate(plain, size, 1.0)), textcoords="offset points", xytext=(4, -12))
    rates.set_ylabel("tokens per second")
    rates.set_xlabel("decode batch size")
    rates.set_ylim(bottom=0)
    rates.legend(fontsize="small")
    figure.savefig(path, dpi=110)


def _sizes(profile: Profile) -> list[int]:
    return sorted({point.batch_size for curve in (profile.plain, profile.speculative) for point in curve.points})
