"""The plots of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from otel_lifecycle._cli.evidence.evidence import Evidence
from otel_lifecycle._cli.evidence.sketch import GROWTH, SMALLEST, Floats, Sketch
from otel_lifecycle._cli.evidence.timeline import Timeline
from otel_lifecycle._cli.render.canvas import SPACE, drawing, in_seconds
from otel_lifecycle._cli.render.theme import OUTCOME_COLOUR, colour
from otel_lifecycle._cli.requests.model import STAGES, Request
from otel_lifecycle._cli.text import plural, seconds, share, shorten, text

BARS: Final = 48
"""Bars of a histogram, at most."""
NARROW: Final = 4
"""Largest over smallest sample below which an axis is linear."""
COLUMNS: Final = 90
"""Columns of a plot over time, at most."""


def distribution(sketch: Sketch, name: str, figures: Mapping[str, float | None]) -> str:
    """A histogram with p50, p95 and p99 marked; on a logarithmic axis, unless all samples are much alike."""
    label = f"{name}: p50 {seconds(figures['p50'])}, p95 {seconds(figures['p95'])}, p99 {seconds(figures['p99'])}"
    with drawing(4.2, 2.3, label=label) as made:
        axes = made.axes[0]
        edges, counts = _bars(sketch)
        axes.stairs(counts, edges, fill=True, color=colour("accent"), alpha=0.75)
        narrow = edges[-1] / edges[0] < NARROW
        axes.set_xscale("linear" if narrow else "log")
        top = float(counts.max()) * 1.32
        axes.set_ylim(0, top)
        for height, key in zip((0.98, 0.9, 0.82), ("p50", "p95", "p99"), strict=True):
            value = figures[key]
            if value:
                axes.axvline(value, ymax=height - 0.03, color=colour("ink"), linewidth=0.9, linestyle=(0, (3, 2)))
                axes.text(value, top * height, f"{SPACE}{key} {seconds(value)}", fontsize=8, va="center")
        axes.margins(x=0.12)
        if narrow:
            axes.xaxis.set_major_locator(MaxNLocator(4))
            axes.xaxis.set_major_formatter(in_seconds())
        else:
            _log_ticks(axes, float(edges[0]), float(edges[-1]))
        axes.set_title(f"{name}  ({sketch.n:,} samples)", loc="left", fontsize=9.5)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
    return made.svg


def _bars(sketch: Sketch) -> tuple[Floats, Floats]:
    """Join neighbouring bins of the sketch to a readable number of bars."""
    used = np.flatnonzero(sketch.counts)
    if not len(used):
        return np.array([SMALLEST, SMALLEST * 2]), np.array([float(sketch.zeros)])
    first, last = int(used[0]), int(used[-1])
    step = max(1, -(-(last - first + 1) // BARS))
    padded = np.pad(sketch.counts[first : last + 1], (0, -(last - first + 1) % step))
    counts = padded.reshape(-1, step).sum(axis=1).astype(np.float64)
    edges = SMALLEST * GROWTH ** (first + step * np.arange(len(counts) + 1, dtype=np.float64))
    return edges, counts


def _log_ticks(axes: Axes, low: float, high: float) -> None:
    """Put ticks at 1, 2 and 5 of every decade, or 1 only where that would be too many."""
    decades = range(int(np.floor(np.log10(low))) - 1, int(np.ceil(np.log10(high))) + 2)
    steps = (1, 2, 5) if high / low < 60 else (1, 3) if high / low < 1000 else (1,)
    left, right = axes.get_xlim()
    axes.set_xticks(
        [digit * 10.0**decade for decade in decades for digit in steps if left <= digit * 10.0**decade <= right]
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(in_seconds())


def over_time(timeline: Timeline) -> str:
    """Mean time in each stage of the requests that arrived then, above how many were in flight."""
    stride = max(1, -(-len(timeline.field("arrivals")) // COLUMNS))
    starts = timeline.start + timeline.width * stride * np.arange(-(-len(timeline.field("arrivals")) // stride))
    count = _joined(timeline.field("broken_down"), stride)
    sums = np.vstack([_joined(timeline.field(stage), stride) for stage in STAGES])
    means = np.divide(sums, count, out=np.zeros_like(sums), where=count > 0)
    moments = [datetime.fromtimestamp(float(start), tz=timezone.utc) for start in starts]
    ratios = {"height_ratios": [3, 1.3]}
    label = "mean time in each stage over the run, and requests in flight"
    with drawing(9, 3.6, rows=2, label=label, sharex=True, gridspec_kw=ratios) as made:
        top, bottom = made.axes
        width = timeline.width * stride / 86400
        floor = np.zeros(len(moments))
        for stage, mean in zip(STAGES, means, strict=True):
            top.bar(moments, mean, width=width, bottom=floor, align="edge", color=colour(stage), label=stage)  # type: ignore[arg-type]  # dates, which matplotlib converts
            floor += mean
        top.yaxis.set_major_formatter(in_seconds())
        top.legend(ncols=4, loc="upper left", bbox_to_anchor=(0, 1.2))
        top.set_ylabel("mean per request")
        level = _joined(timeline.in_flight(), stride) / stride
        bottom.fill_between(moments, level, step="post", color=colour("muted"), alpha=0.5, linewidth=0)  # type: ignore[arg-type]  # the same
        bottom.set_ylim(bottom=0)
        bottom.set_ylabel("in flight")
        bottom.set_xlabel("time of arrival (UTC)")
        dates = ConciseDateFormatter(AutoDateLocator())  # type: ignore[no-untyped-call]  # matplotlib types it not yet
        bottom.xaxis.set_major_formatter(dates)
    return made.svg


def _joined(field: Floats, stride: int) -> Floats:
    padded = np.pad(field, (0, -len(field) % stride))
    joined: Floats = padded.reshape(-1, stride).sum(axis=1)
    return joined


def slowest(requests: Sequence[Request]) -> str:
    """A waterfall of the slowest requests, from their own arrival on."""
    shown = [request for request in requests if request.seconds.get("e2e")]
    with drawing(9, 0.55 + 0.3 * len(shown), label="stages of the slowest requests") as made:
        axes = made.axes[0]
        for row, request in enumerate(shown):
            at = 0.0
            for stage, length in stage_lengths(request):
                axes.barh(row, length, left=at, color=colour(stage), height=0.62)
                at += length
            axes.text(at, row, f"{SPACE}{seconds(request.seconds['e2e'])}", va="center", fontsize=8)
        told = [request.attributes.get("inference.request.id") or request.trace_id[:12] for request in shown]
        names = [shorten(text(name), 34) for name in told]
        axes.set_yticks(range(len(shown)), names)
        axes.invert_yaxis()
        axes.xaxis.set_major_formatter(in_seconds())
        axes.margins(x=0.1, y=0.02)
        axes.set_xlabel("since arrival")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
    return made.svg


def stage_lengths(request: Request) -> list[tuple[str, float]]:
    """Return (stage or ``other``, seconds) along a request; what no stage accounts for is ``other``."""
    keys = (
        ("queue", "queue_wait"),
        ("preprocessing", "preprocessing"),
        ("prefill", "prefill"),
        ("decode", "decode_time"),
    )
    told = [(stage, request.seconds[key]) for stage, key in keys if request.seconds.get(key)]
    rest = request.seconds.get("e2e", 0.0) - sum(length for _, length in told)
    # Rounding of a float nanosecond is no stage.
    return [*told, ("other", rest)] if rest > 1e-6 else told


def mix(evidence: Evidence) -> str:
    """Two bars: how requests ended, and what the largest stage of the completed ones was."""
    rows = [("outcome", dict(evidence.outcomes)), ("bottleneck", dict(evidence.bottlenecks))]
    shown = [(name, counts) for name, counts in rows if sum(counts.values())]
    with drawing(9, 0.35 + 0.75 * len(shown), label="mix of outcomes and of bottlenecks") as made:
        axes = made.axes[0]
        for row, (_, counts) in enumerate(shown):
            _mix_row(axes, row, counts)
        axes.set_yticks(
            range(len(shown)), [f"{name}\n({plural(sum(counts.values()), 'request')})" for name, counts in shown]
        )
        axes.set_ylim(len(shown) - 0.45, -0.4)
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _position: f"{value:.0%}"))
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)
        axes.tick_params(length=0)
    return made.svg


def _mix_row(axes: Axes, row: int, counts: Mapping[str, int]) -> None:
    """One bar; parts too small for their name are named together at its end."""
    total, at, small = sum(counts.values()), 0.0, []
    for key, count in sorted(counts.items(), key=lambda item: -item[1]):
        part = count / total
        axes.barh(row, part, left=at, color=_shade(key), height=0.42)
        if part > 0.12 or at == 0:
            axes.text(at, row + 0.36, f"{shorten(text(key), 34)} {share(part)}", fontsize=8, va="center")
        elif part:
            small.append(f"{shorten(text(key), 34)} {share(part)}")
        at += part
    axes.text(1, row + 0.36, ", ".join(small), fontsize=8, va="center", ha="right")


def _shade(key: str) -> str:
    """Return the colour of an outcome, a stage, or a name that another version gave."""
    name = OUTCOME_COLOUR.get(key, key)
    return colour(name if name in OUTCOME_COLOUR.values() or name in STAGES else "other")


def against_length(evidence: Evidence) -> str | None:
    """TTFT against the length of the prompt, request by request; None where too few tell both."""
    length, ttft = evidence.sample.column("input_tokens"), evidence.sample.column("ttft")
    known = np.flatnonzero(~np.isnan(length) & ~np.isnan(ttft))[:DOTS]
    if len(known) < 20 or len(np.unique(length[known])) < 5:
        return None
    with drawing(4.2, 2.3, label="time to first token against prompt length") as made:
        axes = made.axes[0]
        # One path for all dots: a thousand circles would be a thousand elements.
        axes.plot(length[known], ttft[known], ".", markersize=2.2, color=colour("accent"), alpha=0.55)
        axes.set_title(f"TTFT by prompt length  ({len(known):,} requests)", loc="left", fontsize=9.5)
        axes.set_xlabel("input tokens")
        axes.yaxis.set_major_formatter(in_seconds())
        axes.set_ylim(bottom=0)
    return made.svg


DOTS: Final = 1500
"""Dots of a scatter plot, at most."""
