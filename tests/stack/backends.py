"""Ask the backends what they hold, through the APIs that Grafana and an operator use."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, TypeVar

T = TypeVar("T")
PATIENCE: Final = 45.0


class NotYet(Exception):
    """What is waited for is not there yet; the message says what is."""


def eventually(probe: Callable[[], T], timeout: float = PATIENCE) -> T:
    """Return what ``probe`` returns once it raises neither NotYet nor AssertionError; raise its last one in the end."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return probe()
        except (NotYet, AssertionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def get(url: str, **parameters: object) -> Any:
    """GET a JSON document."""
    query = urllib.parse.urlencode(parameters, doseq=True)
    with urllib.request.urlopen(f"{url}?{query}" if query else url, timeout=30) as reply:
        return json.load(reply)


class Jaeger:
    """Jaeger's query API, version 3: OTLP as it came in, to the nanosecond."""

    def __init__(self, port: int) -> None:
        self.base = f"http://127.0.0.1:{port}"

    def spans(self, trace_id: str) -> list[dict[str, Any]]:
        """Return the spans of a trace with plain attribute mappings, by start time; [] if there is no such trace."""
        try:
            found = get(f"{self.base}/api/v3/traces/{trace_id}")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return []
            raise
        spans = [
            {**span, "resource": plain(resource["resource"].get("attributes", []))}
            for resource in found["result"]["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]
        return sorted(map(_plain_span, spans), key=lambda span: (span["start"], span["name"]))

    def trace(self, trace_id: str, spans: int = 1) -> list[dict[str, Any]]:
        """Return the spans of a trace once there are that many of them."""

        def whole() -> list[dict[str, Any]]:
            found = self.spans(trace_id)
            if len(found) < spans:
                raise NotYet(f"{trace_id} has {len(found)} spans, not {spans}")
            return found

        return eventually(whole)

    def sizes(self, service: str, tags: Mapping[str, str] | None = None, **form: str) -> dict[str, int]:
        """Return the service's traces that match all tags, as the page's form does: id -> spans.

        ``form``: the form's other fields, such as ``operation``.
        """
        found = get(
            f"{self.base}/api/traces",
            service=service,
            tags=json.dumps(tags or {}),
            limit=20_000,
            lookback="1h",
            **form,
        )
        return {trace["traceID"]: len(trace["spans"]) for trace in found["data"]}

    def search(self, service: str, tags: Mapping[str, str] | None = None, **form: str) -> set[str]:
        """Return the ids of :meth:`sizes`."""
        return set(self.sizes(service, tags, **form))


class Prometheus:
    """Prometheus' HTTP API."""

    def __init__(self, port: int) -> None:
        self.base = f"http://127.0.0.1:{port}"

    def query(self, expr: str, at: float | None = None) -> dict[frozenset[tuple[str, str]], float]:
        """Evaluate an expression now: label set -> value."""
        parameters = {"query": expr} if at is None else {"query": expr, "time": at}
        found = get(f"{self.base}/api/v1/query", **parameters)["data"]["result"]
        return {frozenset(sample["metric"].items()): float(sample["value"][1]) for sample in found}

    def value(self, expr: str) -> float:
        """Evaluate an expression that gives one sample; NotYet if it gives none or several."""
        found = self.query(expr)
        if len(found) != 1:
            raise NotYet(f"{expr} gives {len(found)} samples: {found}")
        return next(iter(found.values()))

    def by(self, label: str, expr: str) -> dict[str, float]:
        """Evaluate an expression: that label's value -> value."""
        return {dict(labels).get(label, ""): value for labels, value in self.query(expr).items()}

    def series(self, expr: str, seconds: float, step: float = 1.0) -> list[Any]:
        """Evaluate an expression over the last seconds, as a panel does."""
        now = time.time()
        found = get(f"{self.base}/api/v1/query_range", query=expr, start=now - seconds, end=now, step=step)
        return list(found["data"]["result"])

    def exemplars(self, expr: str, seconds: float = 600) -> list[dict[str, Any]]:
        """Return the exemplars of an expression's series: labels, value, timestamp."""
        now = time.time()
        found = get(f"{self.base}/api/v1/query_exemplars", query=expr, start=now - seconds, end=now)
        return [exemplar for series in found["data"] for exemplar in series["exemplars"]]

    def alerts(self, name: str, job: str) -> list[str]:
        """Return the states of the job's alerts of that name."""
        found = get(f"{self.base}/api/v1/alerts")["data"]["alerts"]
        return sorted(
            alert["state"]
            for alert in found
            if (alert["labels"]["alertname"], alert["labels"].get("job")) == (name, job)
        )


class Webhook:
    """The far end of an alert: keeps every notification that Alertmanager posts."""

    def __init__(self) -> None:
        self.notifications: list[dict[str, Any]] = []
        kept = self.notifications

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                kept.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is http.server's
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def alerts(self, name: str, job: str) -> list[dict[str, Any]]:
        """Return the job's alerts of that name in the order they came."""
        return [
            alert
            for notification in list(self.notifications)
            for alert in notification["alerts"]
            if (alert["labels"]["alertname"], alert["labels"].get("job")) == (name, job)
        ]

    def names(self, job: str) -> set[str]:
        """Return the names of every alert of the job that was ever delivered."""
        alerts = [alert["labels"] for notification in list(self.notifications) for alert in notification["alerts"]]
        return {labels["alertname"] for labels in alerts if labels.get("job") == job}

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


def scrape(port: int, host: str = "127.0.0.1") -> dict[str, float]:
    """Return a program's own metrics: name, summed over its labels -> value."""
    sums: dict[str, float] = {}
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=10) as reply:
        for line in reply.read().decode().splitlines():
            if line and not line.startswith("#"):
                name, value = line.split("{")[0].split(" ")[0], line.rsplit(" ", 1)[1]
                sums[name] = sums.get(name, 0.0) + float(value)
    return sums


def plain(attributes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return OTLP/JSON attributes as a mapping of plain values."""
    return {attribute["key"]: _plain_value(attribute["value"]) for attribute in attributes}


def _plain_value(value: dict[str, Any]) -> Any:
    ((kind, inner),) = value.items()
    if kind == "intValue":
        return int(inner)
    if kind == "arrayValue":
        return tuple(_plain_value(item) for item in inner.get("values", []))
    return inner


def _plain_span(span: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": span["name"],
        "trace_id": span["traceId"],
        "span_id": span["spanId"],
        "parent": span.get("parentSpanId", ""),
        "start": int(span["startTimeUnixNano"]),
        "end": int(span["endTimeUnixNano"]),
        "attributes": plain(span.get("attributes", [])),
        # The storage gives them back in an order of its own; readers sort them by time.
        "events": sorted(
            (
                (event["name"], int(event["timeUnixNano"]), plain(event.get("attributes", [])))
                for event in span.get("events", [])
            ),
            key=lambda event: (event[1], event[0]),
        ),
        "status": span.get("status", {}).get("code", 0),
        "resource": span["resource"],
    }
