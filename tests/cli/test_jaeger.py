"""A Jaeger is asked for what its API has, window by window."""

from __future__ import annotations

import json
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from otel_lifecycle._table.sources import jaeger_api
from otel_lifecycle._table.sources.tally import ReadingTally
from tests.cli.generator import START_NS, Load, simulate, spans_of
from tests.cli.running import Ran

LOAD = Load(requests=60)
WINDOW = f"start={START_NS // 1000 - 1000}&end={START_NS // 1000 + 60_000_000}"


def trace_of(spans: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a trace in the form of Jaeger's API: microseconds, tags with types, logs."""
    return {
        "traceID": spans[0]["traceId"],
        "spans": [_span(span) for span in spans],
        "processes": {"p1": {"serviceName": "tiny-llm", "tags": [{"key": "host.arch", "value": "amd64"}]}},
    }


def _span(span: dict[str, Any]) -> dict[str, Any]:
    start, end = int(span["startTimeUnixNano"]) // 1000, int(span["endTimeUnixNano"]) // 1000
    parent = [{"refType": "CHILD_OF", "spanID": span["parentSpanId"]}] if "parentSpanId" in span else []
    return {
        "traceID": span["traceId"],
        "spanID": span["spanId"],
        "operationName": span["name"],
        "references": parent,
        "startTime": start,
        "duration": end - start,
        "tags": [_tag(item) for item in span["attributes"]],
        "logs": [
            {"timestamp": int(event["timeUnixNano"]) // 1000, "fields": [{"key": "event", "value": event["name"]}]}
            for event in span.get("events", ())
        ],
        "processID": "p1",
    }


def _tag(item: dict[str, Any]) -> dict[str, Any]:
    kind, value = next(iter(item["value"].items()))
    if kind == "intValue":
        return {"key": item["key"], "type": "int64", "value": int(value)}
    types = {"doubleValue": "float64", "stringValue": "string", "boolValue": "bool"}
    return {"key": item["key"], "type": types[kind], "value": value}


TRACES = [trace_of(spans_of(request, LOAD)) for request in simulate(LOAD)]


class Jaeger(BaseHTTPRequestHandler):
    """The query API, as far as it is asked: services, search with a limit, one trace."""

    asked: list[str]

    def do_GET(self) -> None:
        """Answer."""
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        self.asked.append(url.path)
        if url.path == "/api/services":
            self._answer({"data": ["tiny-llm"]})
        elif url.path == "/api/traces":
            start, end = int(query["start"]), int(query["end"])
            found = [trace for trace in TRACES if start <= trace["spans"][0]["startTime"] <= end]
            self._answer({"data": found[: int(query["limit"])] if query["service"] == "tiny-llm" else []})
        elif url.path.startswith("/api/traces/"):
            self._answer({"data": [trace for trace in TRACES if trace["traceID"] == url.path.rpartition("/")[2]]})
        else:
            self._answer({"data": None, "errors": [{"code": 404, "msg": "not found"}]})

    def _answer(self, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name the base class gave it
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    """Its address."""
    Jaeger.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Jaeger) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{made.server_address[1]}"
        finally:
            made.shutdown()
            thread.join()


@pytest.mark.long
@pytest.mark.parametrize("query", [f"?service=tiny-llm&{WINDOW}", f"?{WINDOW}", f"/search?service=tiny-llm&{WINDOW}"])
def test_a_jaeger_is_a_source(server: str, cli: Callable[..., Ran], query: str) -> None:
    """With a service or with all of them; the address of its page is as good."""
    report = cli("report", server + query, "--json").json
    assert (report["requests"]["total"], report["trouble"]) == (60, [])
    expected = [request.first_token - request.arrive for request in simulate(LOAD)]
    assert report["latency"]["ttft"]["mean"] == pytest.approx(sum(expected) / 60)
    assert report["conditions"]["stated"]["service"] == {"tiny-llm": 60}


def test_a_full_window_is_halved(server: str, cli: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    """However few traces an answer may have, all come, and one answer is held at a time."""
    monkeypatch.setattr(jaeger_api, "PAGE", 7)
    report = cli("report", f"{server}?service=tiny-llm&{WINDOW}", "--json").json
    assert report["requests"]["total"] == 60
    assert Jaeger.asked.count("/api/traces") > 10


def test_one_trace_is_viewed(server: str, cli: Callable[..., Ran]) -> None:
    """By its own address."""
    told = cli("view", f"{server}/api/traces/{TRACES[3]['traceID']}", "--json").json
    assert (told["trace_id"], len(told["waterfall"])) == (TRACES[3]["traceID"], 5)


def test_what_its_page_saves_is_a_source(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """The JSON that a person downloads."""
    (tmp_path / "saved.json").write_text(json.dumps({"data": TRACES[:5]}))
    assert cli("report", "saved.json", "--json").json["requests"]["total"] == 5


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("http://127.0.0.1:1?lookback=abc", "lookback=abc is not a number of seconds"),
        ("http://127.0.0.1:1?lookback=nan", "lookback=nan is not a number of seconds"),
        ("http://127.0.0.1:1?start=soon", "start=soon is not a number of epoch microseconds"),
        ("https://[bad", "https://[bad is not an address"),
        ("http://local host", "URL can't contain control characters"),
    ],
)
def test_an_address_that_makes_no_sense_is_code_2(cli: Callable[..., Ran], address: str, reason: str) -> None:
    """With what is wrong with it."""
    ran = cli("report", address)
    assert ran.code == 2
    assert reason in ran.err
    assert "fault of otel-lifecycle" not in ran.err


def test_lookback_is_what_its_page_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds, or a number with a unit."""
    asked: list[str] = []

    def answer(url: str) -> dict[str, Any]:
        asked.append(url)
        return {"data": []}

    monkeypatch.setattr(jaeger_api, "_get", answer)
    for lookback in ("7200", "2h"):
        list(jaeger_api.fetch(f"http://host?service=s&lookback={lookback}", 10**10, ReadingTally()))
    assert ["start=2800000000&end=10000000000" in url for url in asked] == [True, True]


def test_a_tag_that_cannot_be_read_costs_nothing_else(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """It is counted by name."""
    trace = trace_of(spans_of(next(simulate(LOAD)), LOAD))
    trace["spans"][0]["tags"].append({"key": "odd", "type": "int64", "value": "many"})
    (tmp_path / "saved.json").write_text(json.dumps({"data": [trace, {"spans": 5}]}))
    report = cli("report", "saved.json", "--json").json
    assert report["requests"]["completed"] == 1
    assert [(item["kind"], item["places"]) for item in report["trouble"]] == [
        ("broken_attribute", ["saved.json:1: odd"])
    ]


@pytest.mark.parametrize("path", ["/no/such/thing", ":1"])
def test_no_answer_is_code_2(server: str, cli: Callable[..., Ran], path: str) -> None:
    """With the address and the reason."""
    address = f"{server}{path}" if path.startswith("/") else "http://127.0.0.1:1"
    ran = cli("report", f"{address}?service=tiny-llm")
    assert ran.code == 2
    assert "http://127.0.0.1:" in ran.err
