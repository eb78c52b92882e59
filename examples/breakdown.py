"""From finished spans to what the demo prints: a bar of stages for each request, and the workload they make up.

Everything is read from the spans as an exporter gets them, by the names in ``otel_lifecycle.semconv``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry.sdk.trace import ReadableSpan
from rich.table import Table
from rich.text import Text

import otel_lifecycle as lifecycle
from otel_lifecycle import semconv

STAGES: Final = {
    "queue": ("░", "q", "yellow"),
    "preprocessing": ("▒", "p", "magenta"),
    "prefill": ("▓", "f", "cyan"),
    "decode": ("█", "d", "green"),
}
"""Each stage: its mark in a bar, the same for a console without Unicode, and its colour."""

OUTCOME_COLOURS: Final = {"completed": "green", "cancelled": "yellow", "timed_out": "red", "failed": "red"}
BOTTLENECKS: Final = (*STAGES, "mixed")
NOTHING: Final = "-"
"""What stands where there is no evidence; a zero would be a claim."""
SUMMARISED: Final = {"ttft": "TTFT, s", "tpot": "TPOT, ms", "e2e": "E2E, s"}
FIXED_WIDTH: Final = 81
"""Columns of a request's line that are not its bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A finished request: the attributes of its span, its boundaries, the seconds of its stages, its violations.

    ``culprits``: the attributes of the links to the requests that held it.
    """

    attributes: Mapping[str, Any]
    events: tuple[tuple[str, int], ...]
    stages: Mapping[str, float]
    violations: tuple[Mapping[str, Any], ...]
    culprits: tuple[Mapping[str, Any], ...] = ()

    @property
    def id(self) -> str:
        """Return the id the client gave it."""
        return str(self.attributes.get(semconv.REQUEST_ID, "?"))


def read_requests(spans: Iterable[ReadableSpan]) -> dict[str, Request]:
    """Return the requests among the spans by their id, each with the stages that are its children."""
    spans = [span for span in spans if span.context is not None]
    stages: dict[int, dict[str, float]] = {}
    for span in spans:
        stage = (span.attributes or {}).get(semconv.STAGE)
        if isinstance(stage, str) and stage in STAGES and span.parent is not None:
            stages.setdefault(span.parent.span_id, {})[stage] = ((span.end_time or 0) - (span.start_time or 0)) / 1e9
    found = [_request(span, stages) for span in spans if semconv.OUTCOME in (span.attributes or {})]
    # By id, which the clients of the demo choose; a second request of one id would hide the first.
    return {request.id: request for request in found}


def _request(span: ReadableSpan, stages: Mapping[int, Mapping[str, float]]) -> Request:
    wrong = [event for event in span.events if event.name == semconv.VIOLATION_SPAN_EVENT]
    return Request(
        attributes=dict(span.attributes or {}),
        events=tuple((event.name, event.timestamp) for event in span.events if event not in wrong),
        stages=stages.get(span.context.span_id, {}) if span.context else {},
        violations=tuple(dict(event.attributes or {}) for event in wrong),
        culprits=tuple(
            dict(link.attributes) for link in span.links if link.attributes and semconv.LINK_REASON in link.attributes
        ),
    )


def results(requests: Iterable[Request]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Replay the boundaries on the spans into (report, metrics), as ``summarize_workload`` takes them.

    The tokens after the first are one entry at the time of the last: sums, TTFT and TPOT need no more.  A request
    without an end has no report.
    """
    return [result for request in requests if (result := _result(request)) is not None]


def _result(request: Request) -> tuple[dict[str, Any], dict[str, Any]] | None:
    if request.attributes[semconv.OUTCOME] == "incomplete":
        return None
    # Seconds from arrival: as floats, epoch seconds are too coarse for the gaps between tokens.
    start = request.events[0][1]
    events: list[dict[str, Any]] = []
    for name, at_ns in request.events:
        if name in ("arrive", "admit", "input_ready", "first_token", "complete", "cancel", "timeout", "fail"):
            events.append({"event": name, "timestamp": (at_ns - start) / 1e9})
        if name == "first_token":
            events.extend(_later_tokens(request, events[-1]["timestamp"]))
    report = lifecycle.replay_request_events(events)
    return report, lifecycle.compute_request_metrics(report)


def _later_tokens(request: Request, first: float) -> list[dict[str, Any]]:
    tokens = request.attributes.get(semconv.STREAMED_TOKENS) or 1
    if tokens < 2:
        return []
    return [{"event": "token", "timestamp": first + request.attributes[semconv.TOKEN_SPAN], "count": tokens - 1}]


def stage_bar(stages: Mapping[str, float], seconds_per_cell: float, *, ascii_only: bool = False) -> Text:
    """Draw the stages one after the other, to scale: each ends at the cell its end in time is nearest to."""
    bar = Text()
    # Rounded at each end and not for each stage: rounding errors would add up over the bar.
    passed, drawn = 0.0, 0
    for stage, (mark, letter, colour) in STAGES.items():
        passed += stages.get(stage, 0.0)
        cells = round(passed / seconds_per_cell) - drawn
        bar.append((letter if ascii_only else mark) * cells, style=colour)
        drawn += cells
    return bar


def legend(*, ascii_only: bool = False) -> Text:
    """Say what the marks in a bar mean."""
    text = Text()
    for stage, (mark, letter, colour) in STAGES.items():
        text.append((letter if ascii_only else mark) * 2, style=colour)
        text.append(f" {stage}   ")
    return text


def request_table(
    rows: Sequence[tuple[str, Request]], *, title: str, width: int = 100, ascii_only: bool = False
) -> Table:
    """Lay out a line per request: stages to scale, outcome, TTFT, TPOT, and what held it up or where it ended."""
    longest = max((request.attributes.get(semconv.E2E) or 0.0 for _, request in rows), default=0.0) or 1.0
    cells = max(10, width - FIXED_WIDTH)
    per_cell = longest / cells
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("request", no_wrap=True, width=19)
    table.add_column("in/out", no_wrap=True, width=7)
    table.add_column(f"stages, {per_cell:.2g} s a cell", no_wrap=True, width=cells + 8)
    table.add_column("outcome", no_wrap=True, width=9)
    table.add_column("TTFT s", no_wrap=True, width=6, justify="right")
    table.add_column("TPOT ms", no_wrap=True, width=7, justify="right")
    table.add_column("", width=1)
    table.add_column("bottleneck or end", width=17)
    for label, request in rows:
        table.add_row(label, *_cells(request, per_cell, ascii_only=ascii_only))
    return table


def _cells(request: Request, per_cell: float, *, ascii_only: bool) -> list[Text | str]:
    attributes = request.attributes
    outcome = str(attributes[semconv.OUTCOME])
    bar = stage_bar(request.stages, per_cell, ascii_only=ascii_only)
    bar.append(f" {figure(attributes.get(semconv.E2E))} s")
    size = (attributes.get(name, NOTHING) for name in (semconv.GEN_AI_USAGE_INPUT_TOKENS, semconv.STREAMED_TOKENS))
    return [
        "/".join(str(count) for count in size),
        bar,
        Text(outcome, style=OUTCOME_COLOURS.get(outcome, "red")),
        figure(attributes.get(semconv.TTFT)),
        figure(attributes.get(semconv.TPOT), milli=True),
        "",
        _verdict(request),
    ]


def _verdict(request: Request) -> Text | str:
    attributes = request.attributes
    bottleneck = attributes.get(semconv.BOTTLENECK)
    if bottleneck is not None:
        stage = attributes[semconv.DOMINANT_STAGE]
        text = f"{stage} {attributes[semconv.DOMINANT_SHARE]:.0%}{_beside(request)}"
        return Text(f"mixed, {text}" if bottleneck == "mixed" else text, style=STAGES[stage][2])
    stage = attributes.get(semconv.FAILURE_STAGE)
    if stage is None:
        return NOTHING
    reason = attributes.get(semconv.END_REASON) or attributes.get(semconv.ERROR_TYPE)
    return f"in {stage}" if reason is None else f"in {stage}: {reason}"


def _beside(request: Request) -> str:
    """Say what held the bottleneck; empty where nothing outside the request did, or where it is not known."""
    cause = request.attributes.get(semconv.BOTTLENECK_CAUSE)
    if cause == "idle":
        return ", engine idle"
    if cause == "preemption":
        return ", preempted"
    if cause not in STAGES:
        return ""
    if request.attributes.get(semconv.BOTTLENECK) == "queue":
        return f", most of it beside {cause}"
    stalls = sum(culprit[semconv.LINK_REASON] == "stall" for culprit in request.culprits)
    return f", most of it beside {stalls} prefill{'' if stalls == 1 else 's'}"


def worst_pair(requests: Iterable[Request], names: Mapping[str, str] | None = None) -> str:
    """Name the two requests where one held the other longest; ``names``: what to call them instead of their ids."""
    pairs = [(culprit[semconv.LINK_TIME], request.id, culprit) for request in requests for culprit in request.culprits]
    if not pairs:
        return "No request held another for a tenth of its wait or of its stalls."
    seconds, victim, culprit = max(pairs, key=lambda pair: pair[0])
    how = "waited" if culprit[semconv.LINK_REASON] == "queue" else "stalled"
    other = culprit.get(semconv.REQUEST_ID, "another request")
    called = names or {}
    return (
        f"The worst pair: {called.get(victim, victim)} {how} for {figure(seconds)} s beside {called.get(other, other)}."
    )


def figure(seconds: float | None, *, milli: bool = False) -> str:
    """Write a duration in seconds or milliseconds; what is not known is a dash, never a zero."""
    if seconds is None:
        return NOTHING
    return f"{seconds * 1000:.1f}" if milli else f"{seconds:.2f}"


def latency_table(summary: Mapping[str, Any]) -> Table:
    """Lay out means and quantiles, each row with the number of requests that have such a time."""
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False)
    table.add_column("latency", width=24)
    for heading in ("samples", "mean", "p50", "p95", "p99"):
        table.add_column(heading, justify="right", min_width=7)
    for name, label in SUMMARISED.items():
        milli = name == "tpot"
        figures = [figure(summary[f"{what}_{name}"], milli=milli) for what in ("mean", "p50", "p95", "p99")]
        table.add_row(label, str(summary[f"{name}_sample_count"]), *figures)
    table.add_row(
        "E2E of the completed, s", str(summary["completed_e2e_sample_count"]), figure(summary["mean_completed_e2e"])
    )
    return table


def count_table(requests: Sequence[Request], summary: Mapping[str, Any]) -> Table:
    """Lay out how many requests had each outcome, each bottleneck, and each stage to end in; zeros too."""
    outcomes = [str(request.attributes[semconv.OUTCOME]) for request in requests]
    columns: dict[str, dict[str, int]] = {
        "outcome": {outcome: outcomes.count(outcome) for outcome in semconv.OUTCOMES},
        "bottleneck if completed": {name: summary["bottleneck_counts"].get(name, 0) for name in BOTTLENECKS},
        "the others ended in": {name: _ended_in(requests, name) for name in (*STAGES, "unknown")},
    }
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in columns:
        table.add_column(heading, min_width=24)
        table.add_column("", justify="right", width=3)
        table.add_column("", width=4)
    for line in zip(*(counts.items() for counts in columns.values()), strict=True):
        table.add_row(*(cell for name, count in line for cell in (name, Text(str(count), "" if count else "dim"), "")))
    return table


def _ended_in(requests: Iterable[Request], stage: str) -> int:
    ended = [r.attributes for r in requests if r.attributes[semconv.OUTCOME] not in ("completed", "incomplete")]
    return sum(attributes.get(semconv.FAILURE_STAGE, "unknown") == stage for attributes in ended)


def success_line(summary: Mapping[str, Any]) -> str:
    """Say how many of those that ended completed."""
    rate = NOTHING if summary["success_rate"] is None else f"{summary['success_rate']:.0%}"
    return f"{summary['completed_requests']} of {summary['total_requests']} completed, success rate {rate}"


def violation_lines(requests: Sequence[Request]) -> list[str]:
    """Say what was illegal, request by request; one line says so if nothing was."""
    lines = [
        f"{request.id}: {wrong.get(semconv.VIOLATION_KIND)}"
        f" ({wrong.get(semconv.VIOLATION_EVENT, 'left')} while {wrong.get(semconv.VIOLATION_STATE)})"
        for request in requests
        for wrong in request.violations
    ]
    return lines or [f"No violation in {len(requests)} requests: every lifecycle was legal."]
