"""The plots of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from markupsafe import Markup

from otel_lifecycle._cli.draw import bars, distributions, overtime
from otel_lifecycle._cli.draw.bars import BarRow, Piece
from otel_lifecycle._cli.evidence.evidence import Evidence
from otel_lifecycle._cli.evidence.sketch import GROWTH, SMALLEST, Floats, Sketch
from otel_lifecycle._cli.evidence.timeline import WorkloadTimeline
from otel_lifecycle._cli.requests.model import STAGES, SeenRequest
from otel_lifecycle._cli.text import plural, seconds, shorten, text

BARS: Final = 48
"""Bars of a histogram, at most."""
COLUMNS: Final = 90
"""Columns of a plot over time, at most."""
# An SVG of more elements opens slowly.
DOTS: Final = 1500
"""Dots of a scatter plot, at most."""


def distribution(sketch: Sketch, name: str, figures: Mapping[str, float | None]) -> Markup:
    """A histogram with p50, p95 and p99 marked."""
    edges, counts = _bars(sketch)
    marks = {key: figures[key] for key in ("p50", "p95", "p99")}
    return distributions.histogram(edges.tolist(), counts.tolist(), marks, f"{name}, {plural(sketch.n, 'sample')}")


def _bars(sketch: Sketch) -> tuple[Floats, Floats]:
    """Join neighbouring bins of the sketch to a readable number of bars."""
    used = np.flatnonzero(sketch.counts)
    if not len(used):
        return np.array([SMALLEST, SMALLEST * 2]), np.array([float(sketch.zeros)])
    first, last = int(used[0]), int(used[-1])
    # Whole bins are joined, so that counts stay exact.
    step = max(1, -(-(last - first + 1) // BARS))
    padded = np.pad(sketch.counts[first : last + 1], (0, -(last - first + 1) % step))
    counts = padded.reshape(-1, step).sum(axis=1).astype(np.float64)
    edges = SMALLEST * GROWTH ** (first + step * np.arange(len(counts) + 1, dtype=np.float64))
    return edges, counts


def over_time(timeline: WorkloadTimeline) -> Markup:
    """Mean time in each stage of the requests that arrived then, above how many were in flight."""
    stride = max(1, -(-len(timeline.field("arrivals")) // COLUMNS))
    count = _joined(timeline.field("broken_down"), stride)
    # A column without requests stays empty; dividing by its count of 0 would warn.
    means = {
        stage: np.divide(_joined(timeline.field(stage), stride), count, out=np.zeros_like(count), where=count > 0)
        for stage in STAGES
    }
    level = _joined(timeline.in_flight(), stride) / stride
    start, width = timeline.start, timeline.width * stride
    listed = {stage: mean.tolist() for stage, mean in means.items()}
    counts = [int(one) for one in count]
    drawn = overtime.stages_over_time(start, width, listed, counts, when="time of arrival")
    return drawn + overtime.level_over_time(start, width, level.tolist())


def _joined(field: Floats, stride: int) -> Floats:
    padded = np.pad(field, (0, -len(field) % stride))
    joined: Floats = padded.reshape(-1, stride).sum(axis=1)
    return joined


def slowest(requests: Sequence[SeenRequest], anchors: Mapping[str, str]) -> Markup:
    """The stages of the slowest requests, from their own arrival on; ``anchors``: span id -> its waterfall."""
    rows = [_slow_row(request, anchors.get(request.span_id)) for request in requests if request.seconds.get("e2e")]
    return bars.legend((stage, stage) for stage in (*STAGES, "other")) + bars.durations(
        rows, "stages of the slowest requests"
    )


def _slow_row(request: SeenRequest, anchor: str | None) -> BarRow:
    at, pieces = 0.0, []
    for stage, length in stage_lengths(request):
        tip = f"{stage} {seconds(length)}\nfrom {seconds(at)} to {seconds(at + length)}"
        pieces.append(Piece(start=at, end=at + length, shade=stage, tip=tip))
        at += length
    return BarRow(name=short_name(request), figure=seconds(request.seconds["e2e"]), pieces=pieces, href=anchor)


def short_name(request: SeenRequest) -> str:
    """Return what a request is called in a chart: its id, or the beginning of its trace's."""
    return shorten(text(request.attributes.get("inference.request.id") or request.trace_id[:12]), 34)


def stage_lengths(request: SeenRequest) -> list[tuple[str, float]]:
    """Return (stage or ``other``, seconds) along a request; what no stage accounts for is ``other``."""
    keys = (
        ("queue", "queue_wait"),
        ("preprocessing", "preprocessing"),
        ("prefill", "prefill"),
        ("decode", "decode_time"),
    )
    told = [(stage, request.seconds[key]) for stage, key in keys if request.seconds.get(key)]
    rest = request.seconds.get("e2e", 0.0) - sum(length for _, length in told)
    # Rounding of a float nanosecond is not a stage.
    return [*told, ("other", rest)] if rest > 1e-6 else told


def mix(evidence: Evidence) -> Markup:
    """Two bars: how requests ended, and what the largest stage of the completed ones was."""
    rows = [("outcome", dict(evidence.outcomes)), ("bottleneck", dict(evidence.bottlenecks))]
    return bars.mix(rows, "mix of requests")


def against_length(evidence: Evidence) -> Markup | None:
    """TTFT against the length of the prompt, request by request; None if too few requests have both."""
    length, ttft = evidence.sample.column("input_tokens"), evidence.sample.column("ttft")
    known = np.flatnonzero(~np.isnan(length) & ~np.isnan(ttft))[:DOTS]
    # Fewer points or lengths suggest a trend that is not there.
    if len(known) < 20 or len(np.unique(length[known])) < 5:
        return None
    points = list(zip(length[known].tolist(), ttft[known].tolist(), strict=True))
    return distributions.against(points, f"TTFT by input tokens, {plural(len(known), 'request')}")
