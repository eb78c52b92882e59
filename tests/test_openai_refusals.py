"""What the body of a refusal says beyond its status."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from otel_lifecycle._http.body_tokens import MAX_HELD
from otel_lifecycle.asgi import LifecycleMiddleware
from tests.support.telemetry import Telemetry

TOO_LONG = {"message": "secret", "type": "invalid_request_error", "code": "context_length_exceeded"}
LLAMA_CPP = {"code": 400, "message": "secret", "type": "exceed_context_size_error", "n_ctx": 512}


def reason_of(telemetry: Telemetry, status: int, *parts: bytes, tokens: Any = "openai", kind: str = "json") -> Any:
    """Answer one request so, and return the reason its span has."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", f"application/{kind}".encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for part in parts[:-1]:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": parts[-1]})

    sent: list[bytes] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"content-length", b"2")]}
    middleware = LifecycleMiddleware(app, routes=["/"], tokens=tokens, tracer_provider=telemetry.tracer_provider)
    asyncio.run(middleware(scope, receive, send))
    assert b"".join(sent) == b"".join(parts)
    attributes = telemetry.span("chat")["attributes"]
    assert (attributes["inference.outcome"], attributes["inference.legal"]) == ("failed", True)
    assert ("inference.delivered" in attributes) is any(parts)
    assert "secret" not in repr(telemetry.spans())
    return attributes["inference.end.reason"]


@pytest.mark.parametrize("error", [TOO_LONG, LLAMA_CPP], ids=["OpenAI", "llama.cpp"])
@pytest.mark.parametrize("pieces", [1, 3])
def test_input_that_is_too_long_is_told_from_other_bad_input(telemetry: Telemetry, error: Any, pieces: int) -> None:
    """Both are answered 400, in however many pieces; type and code tell which."""
    body = json.dumps({"error": error}).encode()
    size = -(-len(body) // pieces)
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    assert reason_of(telemetry, 400, *parts) == "input_too_long"


OTHERS: dict[str, tuple[int, bytes, dict[str, Any], str]] = {
    "another error": (400, b'{"error": {"type": "BadRequestError", "code": 400}}', {}, "bad_input"),
    "rate limit in the words of a 400": (400, b'{"error": {"type": "rate_limit"}}', {}, "bad_input"),
    "another status": (429, json.dumps({"error": TOO_LONG}).encode(), {}, "rate_limited"),
    "no JSON": (400, b"context_length_exceeded", {"kind": "text"}, "bad_input"),
    "broken JSON": (400, b'{"error": {"code": "context_length_exc', {}, "bad_input"),
    "no OpenAI server": (400, json.dumps({"error": TOO_LONG}).encode(), {"tokens": len}, "bad_input"),
    "more than is held": (400, json.dumps({"error": TOO_LONG}).encode().ljust(MAX_HELD + 1), {}, "bad_input"),
    "empty": (400, b"", {}, "bad_input"),
}


@pytest.mark.parametrize(("status", "body", "options", "reason"), OTHERS.values(), ids=OTHERS)
def test_every_other_refusal_is_what_its_status_says(
    telemetry: Telemetry, status: int, body: bytes, options: Any, reason: str
) -> None:
    """The body is not asked, says nothing of it, or is more than is worth reading."""
    assert reason_of(telemetry, status, body, **options) == reason
