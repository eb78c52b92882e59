"""What a click on a row opens: one request with its waterfall, tokens, stalls and neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import jinja2
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from otel_lifecycle._draw.bars import BarRow, Piece, durations
from otel_lifecycle._live.kept import RunningRequest
from otel_lifecycle._table.requests.from_span import is_request
from otel_lifecycle._table.row import TableRow
from otel_lifecycle._table.sources.intake import cleaned
from otel_lifecycle._table.sources.otlp_proto import attributes, span_of
from otel_lifecycle._table.sources.spans import Span
from otel_lifecycle._table.text import NOTHING, seconds, text
from otel_lifecycle._table.violations import findings
from otel_lifecycle._trace import charts
from otel_lifecycle._trace.anatomy import Anatomy, anatomy
from otel_lifecycle._trace.facts import attributes_of, facts_of
from otel_lifecycle._trace.find import found_of

REASONS: Mapping[str, str] = {"queue": "held it in the queue", "stall": "stalled its decode"}
"""Reason of a link -> what the neighbour did."""


def detail_of(trace: TracesData, span_id: str, shape: str) -> str | None:
    """Return the request as a fragment of HTML; None where the trace has no such request."""
    spans = list(_spans(trace))
    own = next((span for span in spans if span.span_id == span_id and is_request(span)), None)
    if own is None:
        return None
    others = sum(map(is_request, spans)) - 1
    found = anatomy(found_of(own, spans, others, shape))
    row = found.row
    return _template("detail.html.j2").render(
        title=f"{text(row['name'])}: {row['outcome'].replace('_', ' ')}",
        subtitle=_subtitle(row),
        facts=[fact for fact in facts_of(row) if fact[1] != NOTHING],
        charts=list(_charts(found)),
        neighbours=list(_neighbours(row)),
        violations=list(findings(row)),
        attributes=attributes_of(found.found.attributes),
    )


def running_detail(request: RunningRequest, now: float) -> str:
    """Return a running request as a fragment of HTML: its finished stages."""
    # The request's own start is unknown until it ends; its first stage starts at its arrival.
    first = min(start for _, start, _ in request.stages)
    rows = [
        BarRow(
            name=stage,
            figure=seconds(end - start),
            pieces=[Piece(start=start - first, end=end - first, shade=stage, tip=f"{stage} {seconds(end - start)}")],
        )
        for stage, start, end in request.stages
    ]
    return _template("detail.html.j2").render(
        title="A running request",
        subtitle=f"trace {request.trace_id}; it arrived {seconds(now - first)} ago and has not ended",
        charts=[("Stages so far", durations(rows, "stages so far"))],
    )


def _template(name: str) -> jinja2.Template:
    # Every text on the page comes from telemetry, which anyone who reaches the port can send: escape it all.
    loader = jinja2.PackageLoader("otel_lifecycle._live")
    return jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True).get_template(name)


def _spans(trace: TracesData) -> Iterator[Span]:
    for batch in trace.resource_spans:
        resource = attributes(batch.resource.attributes)
        for scope in batch.scope_spans:
            for raw in scope.spans:
                span = span_of(raw, resource, scope.scope.name)
                if span is not None:
                    yield cleaned(span)[0]


def _subtitle(row: TableRow) -> str:
    told = [f"request {text(row['request_id'])}"] if "request_id" in row else []
    return " · ".join([*told, f"trace {row['trace_id']}", f"span {row['span_id']}"])


def _charts(found: Anatomy) -> Iterator[tuple[str, str]]:
    yield "Waterfall", charts.waterfall(found)
    if found.shares:
        yield "Attribution", charts.shares(found.shares)
    if len(found.tokens) > 1:
        yield "Tokens over time", charts.timeline(found)
        yield "Gaps between tokens", charts.gaps(found)


def _neighbours(row: TableRow) -> Iterator[Mapping[str, str]]:
    for link in row.get("links") or ():
        if link["reason"] is not None:
            yield {
                "trace_id": link["trace_id"],
                "span_id": link["span_id"],
                "name": text(link["request_id"] or link["trace_id"][:12]),
                "what": REASONS.get(link["reason"], text(link["reason"])),
                "time": seconds(link["time"]),
            }
