"""Requests as a trace for Perfetto's viewer (ui.perfetto.dev): a track per request, in the Trace Event format.

Stages and stalls are slices, tokens instants, and links to the requests that caused a delay are flows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import IO, Any, Final

from otel_lifecycle._table.machine import to_json_bytes
from otel_lifecycle._table.schema import VERSION, VERSION_KEY
from otel_lifecycle._table.store import RequestTable

QUERY: Final = """
SELECT row_number() OVER (ORDER BY arrival_ns, trace_id, span_id) AS track, trace_id, span_id, request_id, name,
  coalesce(service, 'requests') AS service, coalesce(engine, model) AS engine, arrival_ns, end_ns, outcome, bottleneck,
  bottleneck_cause, reason, input_tokens, output_tokens, ttft, tpot, stages, tokens, stalls, links
FROM requests ORDER BY track
"""
_ARGUMENTS: Final = (
    "trace_id",
    "outcome",
    "reason",
    "bottleneck",
    "bottleneck_cause",
    "input_tokens",
    "output_tokens",
    "ttft",
    "tpot",
)
_MICRO: Final = 1e6

Event = dict[str, Any]


def write(table: RequestTable, out: IO[bytes]) -> None:
    """Write the trace, a request at a time."""
    processes: dict[str, int] = {}
    places: dict[tuple[str, str], tuple[int, int, float]] = {}
    # From the first arrival: epoch microseconds leave a double no room for fractions.
    origin = table.rows("SELECT coalesce(min(arrival_ns), 0) AS ns FROM requests")[0]["ns"]
    # The empty object lets every event begin with a comma, whichever comes first.
    told = to_json_bytes({VERSION_KEY: VERSION})
    out.write(b'{"displayTimeUnit":"ms","otherData":' + told + b',"traceEvents":[\n{}')
    for request in table.rows(QUERY):
        process = processes.setdefault(request["service"], len(processes) + 1)
        start = (request["arrival_ns"] - origin) / 1000
        places[request["trace_id"], request["span_id"]] = (process, request["track"], start)
        for event in _events(request, process, start):
            out.write(b",\n" + to_json_bytes(event))
    for event in _flows(table, places):
        out.write(b",\n" + to_json_bytes(event))
    for name, process in processes.items():
        out.write(b",\n" + to_json_bytes({"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}))
    out.write(b"\n]}\n")


def _events(request: Mapping[str, Any], process: int, start: float) -> Iterator[Event]:
    """Yield the events of a request; ``start`` in microseconds after the first arrival."""
    place: Event = {"pid": process, "tid": request["track"]}
    title = request["request_id"] or request["trace_id"]
    yield {**place, "ph": "M", "name": "thread_name", "args": {"name": title}}
    arguments = {name: request[name] for name in _ARGUMENTS if request[name] is not None}
    length = (request["end_ns"] - request["arrival_ns"]) / 1000
    yield {**place, "ph": "X", "cat": "request", "name": request["name"], "ts": start, "dur": length, "args": arguments}
    for stage in request["stages"] or ():
        yield _slice(place, "stage", stage["stage"], start, stage["start"], stage["end"] - stage["start"])
    for stall in request["stalls"] or ():
        yield _slice(place, "stall", "stall", start, stall["start"], stall["length"])
    for number, time in enumerate(request["tokens"] or (), 1):
        at = start + time * _MICRO
        yield {**place, "ph": "i", "s": "t", "cat": "token", "name": "token", "ts": at, "args": {"number": number}}


def _slice(place: Event, kind: str, name: str, start: float, offset: float, length: float) -> Event:
    return {**place, "ph": "X", "cat": kind, "name": name, "ts": start + offset * _MICRO, "dur": length * _MICRO}


def _flows(table: RequestTable, places: Mapping[tuple[str, str], tuple[int, int, float]]) -> Iterator[Event]:
    """Yield an arrow for each link between two requests of the table, from the cause to the one that was delayed."""
    found = table.rows(
        "SELECT trace_id, span_id, link.trace_id AS other_trace, link.span_id AS other_span, link.reason AS reason"
        " FROM (SELECT trace_id, span_id, unnest(links) AS link FROM requests)"
    )
    for number, link in enumerate(found, 1):
        cause = places.get((link["other_trace"], link["other_span"]))
        effect = places.get((link["trace_id"], link["span_id"]))
        # The other request is not in the table: it was filtered out, or not sampled.
        if cause is None or effect is None:
            continue
        for phase, (process, track, start) in (("s", cause), ("f", effect)):
            name = link["reason"] or "link"
            yield {"ph": phase, "bp": "e", "id": number, "cat": "link", "name": name, "pid": process, "tid": track} | {
                "ts": start
            }
