"""A step-time curve from measured decode steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean, median
from typing import NamedTuple

from specswitch.errors import ProfileError
from specswitch.profile import Curve, Point


class Measured(NamedTuple):
    """Steps of one decode batch size and about one context, as their mean."""

    batch_size: int
    context_tokens: float
    """KV tokens of the whole batch, averaged over the steps."""
    seconds: float
    """Of one step."""


def fit_curve(measured: Iterable[Measured], seconds_per_context_token: float | None = None) -> Curve:
    """One point per batch size, the median of what was measured there, and the cost of context.

    That cost is the common slope, by least squares, of the seconds over the context tokens within each batch size;
    ``seconds_per_context_token`` sets it where it is known otherwise.  Where no batch size was measured at two
    contexts and nothing is set it is 0: the curve then holds for contexts like those measured.

    Raises:
        ProfileError: nothing was measured.
    """
    groups: defaultdict[int, list[Measured]] = defaultdict(list)
    for row in measured:
        groups[row.batch_size].append(row)
    if not groups:
        raise ProfileError("No decode step was measured, so there is no curve to fit: measure at least one batch size.")
    slope = _slope(groups.values()) if seconds_per_context_token is None else seconds_per_context_token
    points = []
    for size, rows in sorted(groups.items()):
        context = fmean(row.context_tokens for row in rows)
        without_context = median(row.seconds - slope * row.context_tokens for row in rows)
        points.append(Point(size, context, without_context + slope * context))
    return Curve(points, slope)


def _slope(groups: Iterable[list[Measured]]) -> float:
    together = spread = 0.0
    for rows in groups:
        context = fmean(row.context_tokens for row in rows)
        seconds = fmean(row.seconds for row in rows)
        together += sum((row.context_tokens - context) * (row.seconds - seconds) for row in rows)
        spread += sum((row.context_tokens - context) ** 2 for row in rows)
    return max(0.0, together / spread) if spread else 0.0
