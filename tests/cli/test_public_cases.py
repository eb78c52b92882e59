"""Public failures in reading files, logs and services: C97 to C101, and hostile input."""

from __future__ import annotations

import base64
import csv
import gzip
import http.server
import io
import json
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from otel_lifecycle._table.events import log
from otel_lifecycle._table.sources import jaeger_api
from tests.cli.generator import Load, encode, line, simulate, spans_of
from tests.cli.live import serve, server
from tests.cli.running import Ran
from tests.cli.test_jaeger import TRACES, WINDOW, trace_of
from tests.cli.test_replay import WORKED, csv_log

LOAD = Load(requests=3)


def spans() -> list[dict[str, Any]]:
    """Return the request spans of three requests."""
    return [spans_of(request, LOAD)[0] for request in simulate(LOAD)]


def batch(made: list[dict[str, Any]]) -> dict[str, Any]:
    """Return them as an OTLP document."""
    found: dict[str, Any] = json.loads(line(made))
    return found


@pytest.mark.long
@pytest.mark.parametrize("odd", ['"\\ud83d"', '"\\udc00x"', "NaN", "-Infinity"])
def test_c97_one_bad_value_in_json_costs_that_value_only(odd: str, cli: Callable[..., Ran], tmp_path: Path) -> None:
    """Half a character or a number that is none, in an attribute of an unrelated name."""
    made = spans()
    made[1]["attributes"].append({"key": "app.odd", "value": {"stringValue" if '"' in odd else "doubleValue": "@@"}})
    (tmp_path / "run.json").write_text(line(made).decode().replace('"@@"', odd))
    report = cli("report", "run.json", "--json").json
    assert (report["requests"]["total"], report["trouble"]) == (3, [])


def test_c97_broken_utf8_costs_no_span(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """JSON and protobuf; the parser of the latter refuses the whole batch."""
    with server() as process:
        serve(process, (0.2, 0.3, 1.0), (), ("complete", 2.0), request_id="hal@f")
        (tmp_path / "run.json").write_bytes(process.json_line().replace(b"hal@f", b"hal\xffx"))
        (tmp_path / "run.pb").write_bytes(process.proto().replace(b"hal@f", b"hal\xed\xa0"))
    for name in ("run.json", "run.pb"):
        told = cli("view", name, "--json").json
        assert told["attributes"]["inference.request.id"].startswith("hal\N{REPLACEMENT CHARACTER}")
        assert told["outcome"] == "completed"


@pytest.mark.long
@pytest.mark.parametrize("parent", [None, "", "0" * 16, base64.b64encode(bytes(8)).decode()])
def test_c97_every_way_to_say_no_parent_means_none(parent: str | None, cli: Callable[..., Ran], tmp_path: Path) -> None:
    """Absent, empty, zeros as hex and zeros as base64."""
    made = spans()
    for span in made:
        span["parentSpanId"] = parent
    (tmp_path / "run.json").write_bytes(line(made))
    report = cli("report", "run.json", "--json").json
    assert (report["requests"]["total"], report["trouble"]) == (3, [])


def test_c97_csv_is_rfc_4180(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """A quoted cell holds commas, quotes and line breaks, lines end in CRLF, and a byte order mark comes first."""
    lines = csv_log(WORKED).splitlines()
    noted = [lines[0] + ",note", lines[1] + ',"two\r\nlines, and ""quotes"""', *(row + "," for row in lines[2:])]
    (tmp_path / "log.csv").write_bytes("\ufeff".encode() + "\r\n".join(noted).encode())
    report = cli("replay", "log.csv", "--json").json
    assert (report["requests"]["total"], report["latency"]["ttft"]["mean"], report["trouble"]) == (2, 7.0, [])


def test_c97_an_odd_column_of_a_log_costs_no_event(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """NaN in a column that is nobody's."""
    rows = [
        json.dumps({"request_id": r, "event": e, "timestamp": t, "load": float("nan"), "who": "\ud800"})
        for r, e, t in WORKED
    ]
    (tmp_path / "log.jsonl").write_text("\n".join(rows))
    report = cli("replay", "log.jsonl", "--json").json
    assert (report["latency"]["ttft"]["mean"], report["trouble"]) == (7.0, [])


def old_names(document: dict[str, Any]) -> dict[str, Any]:
    """Return a batch as exporters wrote it before OTLP 0.19."""
    for resource in document["resourceSpans"]:
        resource["instrumentationLibrarySpans"] = resource.pop("scopeSpans")
        for scope in resource["instrumentationLibrarySpans"]:
            scope["instrumentationLibrary"] = scope.pop("scope")
    return document


WRAPPED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "tempo": lambda one: {"batches": one["resourceSpans"]},
    "tempo v2": lambda one: {"trace": one},
    "tempo v2, batches": lambda one: {"trace": {"batches": one["resourceSpans"]}},
    "jaeger v3": lambda one: {"result": one},
    "old names": old_names,
    "list": lambda one: [one],
}


@pytest.mark.parametrize("form", WRAPPED)
def test_c98_each_wrapper_is_read(form: str, cli: Callable[..., Ran], tmp_path: Path) -> None:
    """What Tempo and Jaeger answer, and old exporters wrote."""
    (tmp_path / "run.json").write_text(json.dumps(WRAPPED[form](batch(spans()))))
    report = cli("report", "run.json", "--json").json
    assert (report["requests"]["total"], report["trouble"]) == (3, [])


def test_c98_a_stream_of_results_is_read(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """Jaeger's newer API answers in several documents."""
    (tmp_path / "run.json").write_text("\n".join(json.dumps({"result": batch([span])}) for span in spans()))
    assert cli("report", "run.json", "--json").json["requests"]["total"] == 3


def test_c98_a_bare_trace_of_jaeger_is_read(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """As its page shows it for one trace."""
    (tmp_path / "run.json").write_text(json.dumps(TRACES[0], indent=2))
    assert cli("report", "run.json", "--json").json["requests"]["total"] == 1


@pytest.mark.parametrize(
    ("document", "looks"),
    [
        ({"menu": {"items": []}}, "an object with the keys menu"),
        ({"traces": [], "metrics": {}}, "a search in Tempo"),
        ([{"traceId": "1", "localEndpoint": {}}], "a span of Zipkin"),
        ("text", "a text"),
    ],
)
def test_c98_any_other_json_is_refused_with_what_it_looks_like(
    document: Any, looks: str, cli: Callable[..., Ran], tmp_path: Path
) -> None:
    """Nothing is silently empty."""
    (tmp_path / "run.json").write_text(json.dumps([document] if isinstance(document, str) else document))
    ran = cli("report", "run.json")
    assert (ran.code, ran.out) == (2, "")
    assert looks in ran.err


class Pages(http.server.BaseHTTPRequestHandler):
    """Jaeger below a base path, and worse servers beside it."""

    def do_GET(self) -> None:
        """Answer."""
        url = urllib.parse.urlsplit(self.path)
        found = _answers(url.path, dict(urllib.parse.parse_qsl(url.query)))
        if isinstance(found, str):
            self.send_response(302)
            self.send_header("Location", found)
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        try:
            for chunk in found:
                self.wfile.write(chunk)
        except OSError:
            return

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name the base class gave it
        """Say nothing."""


def _answers(path: str, query: dict[str, str]) -> str | Iterator[bytes]:
    if path.startswith("/elsewhere"):
        return "http://localhost:1/api/traces"
    if path.startswith("/endless"):
        return iter(lambda: b" " * 65536, b"")
    if path.startswith("/full"):
        return iter([json.dumps({"data": TRACES[:1] * int(query.get("limit", "1"))}).encode()])
    if path.startswith("/page"):
        return iter([b"<html>welcome</html>"])
    name = path.rpartition("/")[2]
    if "/api/v3/traces/" in path:
        return iter([json.dumps({"result": batch(spans()[:1])}).encode()])
    found = [trace for trace in TRACES if path.startswith("/jaeger/ui/api/traces") and name == trace["traceID"]]
    if path == "/jaeger/ui/api/traces":
        start, end = int(query["start"]), int(query["end"])
        found = [trace for trace in TRACES if start <= trace["spans"][0]["startTime"] <= end]
    return iter([json.dumps({"data": found}).encode()])


@contextmanager
def pages() -> Iterator[str]:
    """Give the address of such a server."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages) as made:
        made.daemon_threads = True
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{made.server_address[1]}"
        finally:
            made.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("address", "requests"),
    [
        (
            f"/jaeger/ui/search?service=x&lookback=custom&limit=20&{WINDOW}",
            60,
        ),
        (f"/jaeger/ui/trace/{TRACES[3]['traceID']}", 1),
        (f"/jaeger/ui/trace/{TRACES[3]['traceID']}?uiFind=x", 1),
        (f"/jaeger/ui/api/traces/{TRACES[3]['traceID']}", 1),
        (f"/jaeger/ui/api/v3/traces/{TRACES[3]['traceID']}", 1),
    ],
)
def test_c99_an_address_copied_from_the_page_is_a_source(address: str, requests: int, cli: Callable[..., Ran]) -> None:
    """Below a base path, too."""
    with pages() as base:
        report = cli("report", base + address, "--json").json
    assert report["requests"]["total"] == requests


def test_c99_a_page_that_is_no_jaeger_is_refused_by_name(cli: Callable[..., Ran]) -> None:
    """Without the password that its address holds."""
    with pages() as base:
        ran = cli("report", base.replace("://", "://me:secret@") + "/page?service=x")
    assert ran.code == 2
    assert f"{base}/page/api/traces" in ran.err
    assert "a web page, not one of Jaeger's query API" in ran.err
    assert "secret" not in ran.err


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/elsewhere", "it redirects to another server, http://localhost"),
        ("/endless", "an answer of more than 1 MiB"),
        ("/full", "full pages only"),
    ],
)
def test_a_hostile_jaeger_is_left(
    path: str, reason: str, cli: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endless body, a redirect to another server, and pages that are always full."""
    monkeypatch.setattr(jaeger_api, "LARGEST_BODY", 2**20)
    monkeypatch.setattr(jaeger_api, "MOST_PAGES", 50)
    monkeypatch.setattr(jaeger_api, "PAGE", 2)
    with pages() as base:
        ran = cli("report", f"{base}{path}?service=x")
    assert ran.code == 2
    assert reason in ran.err


@pytest.mark.parametrize(
    ("name", "scale", "options"),
    [
        ("timestamp_us", 10**6, ()),
        ("TIME", 10**3, ("--unit", "ms")),
        ("Timestamp (ns)", 10**9, ()),
        pytest.param("time_ms", 10**3, ("--unit", "ns"), marks=pytest.mark.slow),
        pytest.param("Timestamp", 1, (), marks=pytest.mark.slow),
    ],
)
def test_c100_a_time_column_of_another_name_is_read(
    name: str, scale: int, options: tuple[str, ...], cli: Callable[..., Ran], tmp_path: Path
) -> None:
    """A unit in the name is the unit; --requests prints times in it."""
    rows = [f"{request},{event},{time * scale}" for request, event, time in WORKED]
    (tmp_path / "log.csv").write_text(f"request_id,event,{name}\n" + "\n".join(rows))
    report = cli("replay", "log.csv", "--json", *options).json
    assert (report["latency"]["ttft"]["mean"], report["trouble"]) == (7.0, [])
    first = cli("replay", "log.csv", "--requests", *options).json_lines[0]
    assert (first["request"], first["metrics"]["ttft"]) == ("b", None) or first["metrics"]["ttft"] == 7 * scale


def test_c100_a_time_that_states_its_unit_is_not_scaled(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """ISO 8601, or a number with a unit, whatever --unit says."""
    iso = [(r, e, f"2026-02-02T02:40:{t:02d}.000000001Z"[:26] + "Z") for r, e, t in WORKED]
    (tmp_path / "iso.csv").write_text(csv_log(iso))
    (tmp_path / "unit.csv").write_text(csv_log([(r, e, f"{t * 1000} ms") for r, e, t in WORKED]))
    for name in ("iso.csv", "unit.csv"):
        report = cli("replay", name, "--unit", "us", "--json").json
        assert report["latency"]["ttft"]["mean"] == 7.0


def test_c100_a_log_without_a_time_column_says_so(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """With the columns that may have been meant."""
    rows = [f"{request},{event},{time}" for request, event, time in WORKED]
    (tmp_path / "log.csv").write_text("request_id,event,clock_reading\n" + "\n".join(rows))
    trouble = cli("replay", "log.csv", "--json").json["trouble"]
    assert [(one["kind"], one["count"]) for one in trouble] == [("no_time", 10)]
    assert "did it mean clock_reading?" in trouble[0]["places"][0]


def test_a_line_of_gigabytes_is_refused_with_its_number(
    cli: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few kilobytes of gzip unpack to it; the lines around it are read."""
    lines = [json.dumps({"request_id": r, "event": e, "timestamp": t}).encode() for r, e, t in WORKED]
    lines.insert(3, b'{"event": "' + b"x" * (64 * 2**20) + b'"}')
    (tmp_path / "log.gz").write_bytes(gzip.compress(b"\n".join(lines), 1))
    report = cli("replay", "log.gz", "--json").json
    assert report["latency"]["ttft"]["mean"] == 7.0
    assert [one["places"] for one in report["trouble"]] == [["log.gz:4: a line of more than 1 MiB"]]


def test_tokens_beyond_what_a_request_can_have_are_refused_with_their_line(
    cli: Callable[..., Ran], tmp_path: Path
) -> None:
    """Each claims 65,536 of them; a thousand such lines would be gigabytes of times."""
    names = ("arrive", "admit", "input_ready", "first_token")
    events: list[dict[str, Any]] = [{"event": name, "timestamp": time} for time, name in enumerate(names)]
    events += [{"event": "token", "timestamp": 4 + n, "count": 65_536} for n in range(1000)]
    events += [{"event": "complete", "timestamp": 2000}]
    (tmp_path / "log.jsonl").write_text("\n".join(json.dumps(event) for event in events))
    report = cli("replay", "log.jsonl", "--json").json
    assert report["output"]["output_tokens"] <= log.MAX_TOKENS
    (trouble,) = report["trouble"]
    assert trouble["kind"] == "unreadable_line"
    assert trouble["places"][0] == f"log.jsonl:8: more than {log.MAX_TOKENS:,} tokens of one request"


def test_an_attribute_nested_330_deep_costs_itself_only(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """It is counted by name."""
    deep = '{"arrayValue":{"values":[' * 330 + '{"stringValue":"x"}' + "]}}" * 330
    made = spans()
    made[0]["attributes"].append({"key": "app.deep", "value": "@@"})
    (tmp_path / "run.json").write_text(line(made).decode().replace('"@@"', deep))
    report = cli("report", "run.json", "--json").json
    assert report["requests"]["total"] == 3
    assert [(one["kind"], one["places"]) for one in report["trouble"]] == [
        ("broken_attribute", ["run.json:1: app.deep"])
    ]


@pytest.mark.parametrize("command", ["report", "check"])
def test_csv_neither_steers_a_terminal_nor_runs_in_a_spreadsheet(
    command: str, cli: Callable[..., Ran], tmp_path: Path
) -> None:
    """No control or bidi character; what begins as a formula becomes a text."""
    names = ["=cmd|' /C calc'!A0", "\x1b[31m\x07red\x9b", "\u202eevil", "@SUM(A1)", "-2+3", "+1"]
    made = spans() * 2
    for number, (span, name) in enumerate(zip(made, names, strict=True)):
        made[number] = {
            **span,
            "spanId": f"{number + 1:016x}",
            "attributes": [
                *(
                    one
                    for one in span["attributes"]
                    if one["key"] not in {"inference.request.id", "inference.violations"}
                ),
                *encode({"inference.request.id": name, "inference.end.reason": name, "inference.violations": 1}),
                *encode({"inference.outcome": "failed"}),
            ],
        }
    (tmp_path / "run.json").write_bytes(line(made))
    out = cli(command, "run.json", "--csv").out
    cells = [cell for row in csv.reader(io.StringIO(out)) for cell in row]
    assert "'=cmd|' /C calc'!A0" in cells
    assert not any(cell[:1] in {"=", "+", "@"} for cell in cells)
    assert all(character.isprintable() or character == "\n" for character in out)


def test_c101_cut_offsets_say_how_many_tokens_have_a_time(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """A limit of attribute lengths cuts the text at any character."""
    with server(token_times=True) as process:
        serve(process, (0.1, 0.2, 0.3), [0.3 + 0.01 * n for n in range(1, 1000)], ("complete", 20.0))
        made = json.loads(process.json_line())
    for span in made["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        for item in span["attributes"]:
            if item["key"] == "inference.token_offsets":
                item["value"]["stringValue"] = item["value"]["stringValue"][:2050]
    (tmp_path / "run.json").write_text(json.dumps(made))
    assert "384 of 1,000 tokens have a time" in cli("view", "run.json").out


def test_a_trace_of_jaeger_with_zero_parents_is_read(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """Its references may name a parent of zeros."""
    trace = trace_of(spans_of(next(simulate(LOAD)), LOAD))
    trace["spans"][0]["references"] = [{"refType": "CHILD_OF", "traceID": "0", "spanID": "0"}]
    (tmp_path / "run.json").write_text(json.dumps({"data": [trace]}))
    assert cli("report", "run.json", "--json").json["requests"]["total"] == 1
