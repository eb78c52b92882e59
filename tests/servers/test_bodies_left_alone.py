"""Bodies that are neither an event stream nor JSON go by unread, however large they are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from otel_lifecycle._frames import dialects
from otel_lifecycle.asgi import LifecycleMiddleware
from tests.support.telemetry import Telemetry

PATH = "/generate"
# In an event stream each of these lines is a frame, and parsed as JSON.
LINES = b'{"response": "a"}\n' * 50_000


@pytest.mark.parametrize("kind", [b"text/plain", b"text/html; charset=utf-8", b"application/octet-stream", None])
def test_a_body_of_another_type_is_not_parsed(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, kind: bytes | None
) -> None:
    """Many lines in one message would hold the event loop; the app's answer goes out unchanged."""

    def parse(text: str) -> Any:
        raise AssertionError(f"{len(text)} characters were parsed")

    monkeypatch.setattr(dialects, "loads", parse)
    headers = [] if kind is None else [(b"content-type", kind)]
    answer = [
        {"type": "http.response.start", "status": 200, "headers": headers},
        {"type": "http.response.body", "body": LINES},
    ]
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in answer:
            await send(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    middleware = LifecycleMiddleware(app, routes=[PATH], tokens="openai", tracer_provider=telemetry.tracer_provider)
    scope = {"type": "http", "method": "POST", "path": PATH, "headers": []}
    asyncio.run(middleware(scope, receive, send))
    assert sent == answer
    attributes = telemetry.span("chat")["attributes"]
    assert attributes["inference.outcome"] == "completed"
    assert "gen_ai.usage.output_tokens" not in attributes
