"""The HTTP and gRPC sides: who is served, and what."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_lifecycle._live.guard import AccessRule, is_loopback
from otel_lifecycle._live.kept import Kept
from otel_lifecycle._live.receiver import Receiver
from otel_lifecycle._live.session import LiveSettings, serving
from otel_lifecycle._live.stream import Status
from otel_lifecycle._live.web import LiveSite
from otel_lifecycle._table.errors import Unusable
from tests.live.sent import MakeTelemetry, finish, traces

PROTOBUF = {"content-type": "application/x-protobuf"}


class Site:
    """A site without a socket, asked as a browser or an exporter would."""

    def __init__(self, *, host: str = "127.0.0.1", token: str | None = None) -> None:
        self.receiver = Receiver(Kept())
        self.status = Status("running")
        site = LiveSite(self.receiver, self.status, shape="default", title="<server>", address="here")
        self._app = site.app(AccessRule.of(host, token))

    def ask(self, method: str, path: str, *, host: str = "127.0.0.1:4318", **options: Any) -> httpx.Response:
        """Return the answer to one request."""

        async def asked() -> httpx.Response:
            transport = httpx.ASGITransport(app=self._app)
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
                return await client.request(method, path, **options)

        return asyncio.run(asked())


def test_the_page_loads_nothing_from_elsewhere() -> None:
    """No address but its own, names escaped, and a policy that forbids the network."""
    answer = Site().ask("GET", "/")
    assert answer.status_code == 200
    assert "<title>Live requests: &lt;server&gt;</title>" in answer.text
    assert "://" not in answer.text.replace("http://www.w3.org", "")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy


@pytest.mark.parametrize("host", ["evil.example", "evil.example:4318", "127.0.0.1.evil.example", ""])
def test_another_name_for_this_machine_is_not_answered(host: str) -> None:
    """DNS rebinding: the page of another name must not read from here, nor write."""
    site = Site()
    assert site.ask("GET", "/", headers={"host": host}).status_code == 421
    assert site.ask("POST", "/v1/traces", headers={"host": host, **PROTOBUF}, content=b"").status_code == 421


@pytest.mark.parametrize("host", ["localhost:4318", "127.0.0.1:1", "[::1]:4318"])
def test_the_names_of_the_loopback_are_answered(host: str) -> None:
    """Whatever a user types for this machine."""
    assert Site().ask("GET", "/", headers={"host": host}).status_code == 200


def test_a_page_elsewhere_cannot_send_telemetry() -> None:
    """An Origin that is not this server's is refused, and so is a form's content type."""
    site = Site()
    assert site.ask("POST", "/v1/traces", headers={"origin": "http://evil", **PROTOBUF}).status_code == 403
    assert site.ask("POST", "/v1/traces", headers={"content-type": "text/plain"}).status_code == 415
    assert site.receiver.messages == 0


def test_beyond_the_loopback_a_token_is_needed() -> None:
    """As a parameter once, then as the cookie it leaves, or as a bearer token."""
    site = Site(host="0.0.0.0", token="secret")
    host = "192.0.2.7:4318"
    assert site.ask("GET", "/", host=host).status_code == 401
    assert site.ask("GET", "/?token=wrong", host=host).status_code == 401
    first = site.ask("GET", "/?token=secret", host=host)
    assert first.status_code == 200
    assert "HttpOnly" in first.headers["set-cookie"]
    name, _, value = first.headers["set-cookie"].partition(";")[0].partition("=")
    assert site.ask("GET", "/", host=host, headers={"cookie": f"{name}={value}"}).status_code == 200
    bearer = {"authorization": "Bearer secret", **PROTOBUF}
    assert site.ask("POST", "/v1/traces", host=host, headers=bearer, content=b"").status_code == 200
    assert site.ask("POST", "/v1/traces", host=host, headers=PROTOBUF, content=b"").status_code == 401
    assert site.ask("GET", "/?token=secret", host="evil.example").status_code == 421


def test_only_loopback_addresses_are_loopback() -> None:
    """The names for which no token is made."""
    assert [is_loopback(one) for one in ("127.0.0.1", "127.8.8.8", "::1", "localhost")] == [True] * 4
    assert [is_loopback(one) for one in ("0.0.0.0", "::", "192.0.2.1", "host")] == [False] * 4


def test_bodies_may_be_compressed_and_bombs_are_refused(make_telemetry: MakeTelemetry) -> None:
    """Gzip is unpacked up to the limit of a plain body."""
    site, telemetry = Site(), make_telemetry()
    finish(telemetry)
    packed = {"content-encoding": "gzip", **PROTOBUF}
    assert site.ask("POST", "/v1/traces", headers=packed, content=gzip.compress(traces(telemetry))).status_code == 200
    assert site.receiver.requests == 1
    bomb = gzip.compress(bytes(65 * 2**20), 1)
    assert site.ask("POST", "/v1/traces", headers=packed, content=bomb).status_code == 400
    assert site.ask("POST", "/v1/traces", headers=packed, content=b"no gzip").status_code == 400
    assert site.ask("POST", "/v1/profiles", headers=PROTOBUF, content=b"").status_code == 404


def test_a_request_opens_as_a_waterfall(make_telemetry: MakeTelemetry) -> None:
    """The fragment has the caller's span, every stage, the token timeline, and text of a trace only escaped."""
    site, telemetry = Site(), make_telemetry(token_times=True)
    with telemetry.tracer().start_as_current_span("caller <b>"):
        finish(telemetry, request_id="<script>")
    site.receiver.take("traces", traces(telemetry))
    (row,) = site.receiver.kept.rows.values()
    answer = site.ask("GET", f"/request/{row.trace_id}/{row.span_id}")
    assert answer.status_code == 200
    for part in ("caller &lt;b&gt;", "prefill", "Tokens over time", "token 3 at 90.0 ms", "&lt;script&gt;"):
        assert part in answer.text
    assert "<script>" not in answer.text
    assert site.ask("GET", f"/request/{row.trace_id}/{'0' * 16}").status_code == 404
    assert site.ask("GET", f"/request/xyz/{row.span_id}").status_code == 404


def test_events_bring_rows_and_figures(make_telemetry: MakeTelemetry) -> None:
    """The first events are all rows, then the figures; the last says that it is over."""
    site, telemetry = Site(), make_telemetry()
    finish(telemetry, request_id="r-1")
    site.receiver.take("traces", traces(telemetry))
    site.status.end("it is over")
    answer = site.ask("GET", "/events?last=0&after=0")
    events = [part.partition("\n") for part in answer.text.strip().split("\n\n")]
    assert [head for head, _, _ in events] == ["event: rows", "event: now", "event: ended"]
    first, second = (json.loads(body.removeprefix("data: ")) for _, _, body in events[:2])
    assert [row[3] for row in first["rows"]] == ["r-1"]
    assert (second["figures"]["total"], second["in_flight"], second["kept"]) == (1, None, 1)
    assert "<svg" in second["chart"]
    assert site.ask("GET", "/events?last=soon").status_code == 400


def serve_and(act: Callable[[Any], Awaitable[None]], receiver: Receiver, **settings: Any) -> None:
    """Serve on free ports while ``act`` runs."""

    async def served() -> None:
        async with serving(receiver, Status("running"), LiveSettings(**settings)) as served:
            await act(served)

    asyncio.run(served())


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_real_exporters_reach_it(transport: str, make_telemetry: MakeTelemetry) -> None:
    """Over both transports, with the token where there is one."""
    telemetry = make_telemetry()
    finish(telemetry)
    spans = telemetry.exporter.get_finished_spans()
    receiver = Receiver(Kept())
    results = []

    async def act(served: Any) -> None:
        for token in ("secret", "wrong"):
            headers = {"authorization": f"Bearer {token}"}
            if transport == "grpc":
                grpc = GrpcExporter(f"127.0.0.1:{served.grpc_port}", insecure=True, headers=headers, timeout=10)
                results.append(await asyncio.to_thread(grpc.export, spans))
            else:
                http = HttpExporter(f"{served.http}/v1/traces", headers=headers, timeout=10)
                results.append(await asyncio.to_thread(http.export, spans))

    serve_and(act, receiver, token="secret")
    assert results == [SpanExportResult.SUCCESS, SpanExportResult.FAILURE]
    assert receiver.requests == 1


def test_a_port_that_is_taken_is_named() -> None:
    """The message says which, and how to choose another."""

    async def act(served: Any) -> None:
        with pytest.raises(Unusable, match=f"port {served.port}.*--port"):
            async with serving(Receiver(Kept()), Status(""), LiveSettings(port=served.port)):
                pass
        with pytest.raises(Unusable, match=f"port {served.grpc_port}.*--grpc-port"):
            async with serving(Receiver(Kept()), Status(""), LiveSettings(grpc_port=served.grpc_port)):
                pass

    serve_and(act, Receiver(Kept()))
