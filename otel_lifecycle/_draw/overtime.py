"""The stage breakdown over time: stacked columns of mean times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timezone, tzinfo

from markupsafe import Markup

from otel_lifecycle._draw.bars import legend
from otel_lifecycle._draw.plot import Plot
from otel_lifecycle._draw.scale import linear, moments, short_seconds, whole
from otel_lifecycle._table.text import plural, seconds


def stages_over_time(
    start: float,
    width: float,
    means: Mapping[str, Sequence[float]],
    counts: Sequence[int],
    *,
    when: str,
    zone: tzinfo | None = timezone.utc,
) -> Markup:
    """Return stacked columns of the mean seconds in each stage.

    ``start`` and ``width`` in epoch seconds; ``counts``: requests of each column; ``when``: the instant by
    which a request belongs to a column.
    """
    totals = [sum(column) for column in zip(*means.values(), strict=True)]
    x = moments(start, start + width * len(counts), zone)
    plot = Plot(x, linear(0, (max(totals, default=0) or 1) * 1.08, short_seconds, 4))
    for at, count in enumerate(counts):
        # No request ended or arrived here, so there is no mean; a column of 0 would read as "fast".
        if count:
            _column(plot, start + at * width, width, {stage: column[at] for stage, column in means.items()}, count)
    label = f"mean time in each stage over time, of {plural(sum(counts), 'request')}"
    zone_name = "UTC" if zone is timezone.utc else "local time"
    return legend((stage, stage) for stage in means) + plot.markup(label, f"{when}, {zone_name}; mean of a request")


def _column(plot: Plot, left: float, width: float, means: Mapping[str, float], count: int) -> None:
    floor = 0.0
    for stage, mean in means.items():
        # A gap between columns shows that each is a mean of its own and not a curve.
        plot.box(left + width * 0.06, left + width * 0.94, floor, floor + mean, stage)
        floor += mean
    told = "\n".join(f"{stage} {seconds(mean)}" for stage, mean in means.items())
    plot.target(left, left + width, f"{plural(count, 'request')}, {seconds(floor)}\n{told}")


def level_over_time(start: float, width: float, levels: Sequence[float], zone: tzinfo | None = timezone.utc) -> Markup:
    """Return how many requests were in flight over time."""
    x = moments(start, start + width * len(levels), zone)
    plot = Plot(x, linear(0, max([*levels, 1]), whole, 3), height=60)
    for at, level in enumerate(levels):
        if level:
            tip = f"{level:,.3g} in flight"
            plot.box(start + at * width, start + (at + 1) * width, 0, level, "muted", tip)
    return plot.markup("requests in flight over time", "requests in flight")
