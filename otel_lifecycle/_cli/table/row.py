"""From a request and its span to its row of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from otel_lifecycle import semconv
from otel_lifecycle._cli.requests.from_span import request_of
from otel_lifecycle._cli.requests.model import LARGEST, STAGE_METRIC, SeenRequest
from otel_lifecycle._cli.requests.tokens import token_stalls, token_times
from otel_lifecycle._cli.sources.spans import Span
from otel_lifecycle._cli.table.schema import BY_ATTRIBUTE, COLUMNS
from otel_lifecycle._cli.violations import rule_of
from otel_lifecycle._core.lifecycle import BOUNDARIES, SHAPES, TERMINAL_EVENTS
from otel_lifecycle._core.outcome import DOMINANCE_THRESHOLD

TableRow = Mapping[str, Any]
"""Column -> value; a column without an entry is NULL."""

_TYPES: Final = {column.name: column.type for column in COLUMNS}
_BOUNDARY: Final = {**BOUNDARIES, "arrive": "arrival"}
_BESIDE: Final = frozenset({semconv.TOKEN_OFFSETS, semconv.VIOLATIONS, semconv.LINK_REASON})
"""Attributes that are neither a column by themselves nor kept beside them: other columns say the same."""


def row_of_span(span: Span, shape: str = "default", threshold: float = DOMINANCE_THRESHOLD) -> Mapping[str, Any]:
    """Return the row of a request span: the one that it was made from, or else a new one."""
    return row_of(request_of(span, shape, threshold), span) if span.row is None else span.row


def row_of(request: SeenRequest, span: Span) -> TableRow:
    """Return the row of a request; columns that are unknown have no entry."""
    row = _of_attributes(request.attributes)
    row.update(
        trace_id=request.trace_id,
        span_id=request.span_id,
        name=request.name,
        arrival_ns=request.start_ns,
        end_ns=request.end_ns,
        outcome=request.outcome,
        role=request.role,
        traffic=request.traffic,
        dropped_events=span.dropped_events,
        wasted_tokens=request.wasted,
    )
    optional = {
        "parent_id": span.parent_id or None,
        "scope": span.scope or None,
        "source": span.source or None,
        "line": span.line or None,
        "reason": request.reason,
        "output_tokens": request.output_tokens,
        "legal": request.legal,
    }
    row.update({name: value for name, value in optional.items() if value is not None})
    _add_times(row, request)
    _add_lists(row, request, span)
    return row


def _of_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    rest = {}
    for key, value in attributes.items():
        column = _BY_ATTRIBUTE.get(key)
        if column is not None:
            name, convert = column
            known = convert(value)
            if known is not None:
                # A value of the wrong type stays among the other attributes, where a user finds it.
                row[name] = known
                continue
        elif key in _BESIDE:
            continue
        rest[key] = value
    if rest:
        row["attributes"] = rest
    return row


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _number(value: Any) -> float | None:
    if type(value) in {int, float} and abs(value) <= LARGEST:
        return float(value)
    return None


def _whole(value: Any) -> int | None:
    number = _number(value)
    # 2**63 itself passes as a float and overflows a BIGINT.
    return None if number is None or abs(number) >= LARGEST else int(value)


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


_CONVERT: Final[Mapping[str, Callable[[Any], Any]]] = {
    "VARCHAR": _text,
    "DOUBLE": _number,
    "BIGINT": _whole,
    "BOOLEAN": _flag,
}
# One look-up an attribute: a file of a million requests has forty million.
_BY_ATTRIBUTE: Final = {key: (name, _CONVERT[_TYPES[name]]) for key, name in BY_ATTRIBUTE.items()}


def _add_times(row: dict[str, Any], request: SeenRequest) -> None:
    """Add the boundaries, and the stages between them."""
    times = {"arrival": 0.0}
    for event, offset in request.marks:
        key = "terminal" if event in TERMINAL_EVENTS else _BOUNDARY.get(event)
        if key is not None:
            # The first of each boundary counts: a second one is a violation.
            times.setdefault(key, offset)
    for key in ("admitted", "input_ready", "first_token"):
        if key in times:
            row[f"{key}_ns"] = request.start_ns + round(times[key] * 1e9)
    # The span's own shape, which decides the order of the boundaries; a foreign span need not state one.
    stages = [*_stages(request, times, row.get("shape", "default")), *_preempted(request)]
    if stages:
        row["stages"] = sorted(stages, key=lambda stage: (stage["start"], stage["stage"] == "preempted", stage["end"]))


def _stages(request: SeenRequest, times: Mapping[str, float], shape: str) -> Iterator[TableRow]:
    for stage in SHAPES.get(shape, SHAPES["default"]).stages:
        start, end = times.get(stage.entered), times.get(stage.left)
        if start is not None and end is not None and STAGE_METRIC[stage.name] in request.seconds:
            yield {"stage": stage.name, "start": start, "end": end}


def _preempted(request: SeenRequest) -> Iterator[TableRow]:
    began: float | None = None
    for event, offset in request.marks:
        if event == "preempt":
            began = offset
        # The end of a request also ends an interruption that was never resumed.
        elif began is not None and (event == "resume" or event in TERMINAL_EVENTS):
            yield {"stage": "preempted", "start": began, "end": offset}
            began = None


def _add_lists(row: dict[str, Any], request: SeenRequest, span: Span) -> None:
    tokens = token_times(request, span)
    found = {
        "tokens": tokens,
        "gaps": list(request.gaps),
        "stalls": [stall._asdict() for stall in token_stalls(tokens)],
        "violations": [
            {"kind": one.kind, "state": one.state, "event": one.event, "at": one.offset, "rule": rule_of(one)}
            for one in request.breaches
            # Lost events do not violate the lifecycle; the column dropped_events counts them.
            if one.kind != "truncated"
        ],
        "links": [_link(one.trace_id, one.span_id, one.attributes) for one in span.links],
    }
    row.update({name: value for name, value in found.items() if value})


def _link(trace_id: str, span_id: str, attributes: Mapping[str, Any]) -> TableRow:
    return {
        "trace_id": trace_id,
        "span_id": span_id,
        "reason": _text(attributes.get(semconv.LINK_REASON)),
        "time": _number(attributes.get(semconv.LINK_TIME)),
        "request_id": _text(attributes.get(semconv.REQUEST_ID)),
    }
