"""From a request span and the verdict on it to its row of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from otel_lifecycle import semconv
from otel_lifecycle._core.lifecycle import BOUNDARIES, SHAPES, TERMINAL_EVENTS
from otel_lifecycle._core.outcome import DOMINANCE_THRESHOLD
from otel_lifecycle._table.requests.foreign import Judged
from otel_lifecycle._table.requests.from_span import MARKS, arrival_of, offset_gaps, verdict_of
from otel_lifecycle._table.requests.model import LARGEST, STAGE_METRIC
from otel_lifecycle._table.requests.tokens import times_of_tokens, token_stalls
from otel_lifecycle._table.schema import BY_ATTRIBUTE, COLUMNS
from otel_lifecycle._table.sources.spans import Span
from otel_lifecycle._table.violations import rule_of

TableRow = Mapping[str, Any]
"""Column -> value; a column without an entry is NULL."""

_TYPES: Final = {column.name: column.type for column in COLUMNS}
_NANO: Final = 1e-9
_BOUNDARY: Final = {**BOUNDARIES, "arrive": "arrival"}
_BESIDE: Final = frozenset({semconv.TOKEN_OFFSETS, semconv.VIOLATIONS, semconv.LINK_REASON})
"""Attributes that are neither a column by themselves nor kept beside them: other columns say the same."""


def row_of_span(span: Span, shape: str = "default", threshold: float = DOMINANCE_THRESHOLD) -> TableRow:
    """Return the row of a request span: the one that it was made from, or else a new one."""
    return row_of(span, verdict_of(span, shape, threshold)) if span.row is None else span.row


def row_of(span: Span, judged: Judged) -> TableRow:
    """Return the row of a judged request; columns that are unknown have no entry."""
    arrival = arrival_of(span)
    # The span's own attributes win: a gateway may serve several models under one resource.
    row = _of_attributes({**span.resource, **judged.attributes})
    outcome = row.get("outcome")
    row.update(
        trace_id=span.trace_id,
        span_id=span.span_id,
        name=span.name,
        arrival_ns=arrival,
        # Clocks that disagree must not give a negative length anywhere above.
        end_ns=max(span.end_ns, arrival),
        outcome=outcome if outcome in semconv.OUTCOMES else "incomplete",
        role=row.get("role") or "whole",
        traffic=row.get("traffic") or "live",
        dropped_events=span.dropped_events,
        wasted_tokens=judged.wasted,
    )
    optional = {
        "parent_id": span.parent_id or None,
        "scope": span.scope or None,
        "source": span.source or None,
        "line": span.line or None,
        # A foreign span has no end reason, but the convention's error.type says the same of a failure.
        "reason": row.get("reason") or row.get("error_type"),
        # Streamed tokens were observed.  The usage figure also counts tokens that were never sent.
        "output_tokens": row.get("streamed_tokens", row.get("usage_tokens")),
    }
    row.update({name: value for name, value in optional.items() if value is not None})
    _add_times(row, span, arrival)
    _add_lists(row, span, judged)
    return row


def _of_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    rest = {}
    for key, value in attributes.items():
        column = _BY_ATTRIBUTE.get(key)
        if column is not None:
            name, convert, usual = column
            # The type as it nearly always is, without a call; the bounds leave out NaN as well.
            plain = type(value) is usual and (usual is str or -LARGEST <= value <= LARGEST)
            known = value if plain else convert(value)
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
_USUAL: Final[Mapping[str, Any]] = {"VARCHAR": str, "DOUBLE": float}
# One look-up an attribute: a file of a million requests has forty million.
_BY_ATTRIBUTE: Final = {
    key: (name, _CONVERT[_TYPES[name]], _USUAL.get(_TYPES[name])) for key, name in BY_ATTRIBUTE.items()
}


def _add_times(row: dict[str, Any], span: Span, arrival: int) -> None:
    """Add the boundaries, and the stages between them."""
    marks = [
        (event.name, event.time_ns)
        for event in span.events
        # A placeholder for an unknown time is not a point of the request.
        if event.name in MARKS and event.attributes.get(semconv.TIME_KNOWN) is not False
    ]
    times = {"arrival": arrival}
    for event, time in marks:
        key = "terminal" if event in TERMINAL_EVENTS else _BOUNDARY.get(event)
        if key is not None:
            # The first of each boundary counts: a second one is a violation.
            times.setdefault(key, time)
    for key in ("admitted", "input_ready", "first_token"):
        if key in times:
            row[f"{key}_ns"] = times[key]
    # The span's own shape, which decides the order of the boundaries; a foreign span need not state one.
    stages = [*_stages(row, times, arrival), *_preempted(marks, arrival)]
    if stages:
        row["stages"] = sorted(stages, key=lambda stage: (stage["start"], stage["stage"] == "preempted", stage["end"]))


def _stages(row: Mapping[str, Any], times: Mapping[str, int], arrival: int) -> Iterator[TableRow]:
    for stage in SHAPES.get(row.get("shape", "default"), SHAPES["default"]).stages:
        start, end = times.get(stage.entered), times.get(stage.left)
        if start is not None and end is not None and row.get(STAGE_METRIC[stage.name], -1.0) >= 0:
            yield _stay(stage.name, start - arrival, end - arrival)


def _preempted(marks: Iterable[tuple[str, int]], arrival: int) -> Iterator[TableRow]:
    began: int | None = None
    for event, time in marks:
        if event == "preempt":
            began = time
        # The end of a request also ends an interruption that was never resumed.
        elif began is not None and (event == "resume" or event in TERMINAL_EVENTS):
            yield _stay("preempted", began - arrival, time - arrival)
            began = None


def _stay(stage: str, start_ns: int, end_ns: int) -> TableRow:
    return {"stage": stage, "start": start_ns * _NANO, "end": end_ns * _NANO}


def _add_lists(row: dict[str, Any], span: Span, judged: Judged) -> None:
    tokens = times_of_tokens(span, row["arrival_ns"], row.get("ttft"), judged.attributes)
    found = {
        "tokens": tokens,
        "gaps": judged.gaps or offset_gaps(judged.attributes),
        "stalls": [stall._asdict() for stall in token_stalls(tokens)],
        "violations": [
            {"kind": one.kind, "state": one.state, "event": one.event, "at": one.offset, "rule": rule_of(one)}
            for one in judged.breaches
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
