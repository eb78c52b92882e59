"""A marker text in everything a user or a model says is found nowhere in what leaves the process, nor in the log."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import otel_lifecycle as lifecycle
from tests.support.otlp_receiver import HttpReceiver

MARKER = "my secret: 4711, tell nobody"
MESSAGES = [{"role": "user", "content": MARKER}]
TOOL_CALL = {"name": "look_up", "arguments": f'{{"q": "{MARKER}"}}'}
FRAMES: list[Any] = [
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
    {"choices": [{"index": 0, "delta": {"content": MARKER}}]},
    {"choices": [{"index": 0, "delta": {"reasoning_content": MARKER}}]},
    {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": MARKER, "function": TOOL_CALL}]}}]},
    MARKER,
    MARKER.encode(),
]


class SecretError(Exception):
    """An exception that says too much in every way it can."""

    def __init__(self) -> None:
        super().__init__(MARKER, MESSAGES)
        self.detail = MARKER
        self.__cause__ = ValueError(MARKER)

    def __repr__(self) -> str:
        return MARKER


@lifecycle.traced(model="tiny")
def plain(messages: list[Any], prompt: str) -> str:
    """Answer at once."""
    return MARKER


@lifecycle.traced(model="tiny", tokens=lambda item: 1 if item else 0)
def generator(messages: list[Any], prompt: str) -> Iterator[Any]:
    """Answer in frames."""
    yield from FRAMES


@lifecycle.traced(model="tiny")
async def async_generator(messages: list[Any], prompt: str) -> AsyncIterator[Any]:
    """Answer in frames, and fail in the middle."""
    for frame in FRAMES:
        yield frame
    raise SecretError


@lifecycle.stage("preprocessing")
def tokenize(prompt: str) -> None:
    """Fail."""
    raise SecretError


def count_and_fail(item: object) -> int:
    """Fail at counting."""
    raise SecretError


def expecting(call: Any) -> None:
    """Run what raises the exception of ours."""
    with pytest.raises(SecretError):
        call()


async def consume() -> None:
    """Read the async generator to its failure."""
    async for _ in async_generator(MESSAGES, prompt=MARKER):
        pass


def by_decorators() -> None:
    """Everything that ``traced`` sees: arguments, results, items, exceptions."""
    plain(MESSAGES, prompt=MARKER)
    list(generator(MESSAGES, prompt=MARKER))
    expecting(lambda: asyncio.run(consume()))


def by_ends() -> None:
    """Every reason and error, as free text and as an exception, and exceptions that leave blocks."""
    ends = [("fail", SecretError()), ("fail", MARKER), ("fail", MESSAGES), ("cancel", MARKER), ("timeout", MARKER)]
    for end, argument in ends:
        request = lifecycle.request(model="tiny")
        getattr(request, end)(argument)
        getattr(request, end)(argument)

    def leave() -> None:
        with lifecycle.request(model="tiny") as request, request.stage("queue"):
            raise SecretError

    expecting(leave)

    def leave_a_decorated_stage() -> None:
        with lifecycle.request(model="tiny") as request, request.stage("preprocessing"):
            tokenize(MARKER)

    expecting(leave_a_decorated_stage)

    def leave_startup() -> None:
        with lifecycle.startup("warm_up", model="tiny"):
            raise SecretError

    expecting(leave_startup)


def by_marks() -> None:
    """Values of the wrong kind where numbers and events are taken, and what an engine sends along with its marks."""
    with lifecycle.request(model="tiny", deadline=MARKER, max_tokens=MARKER, stream=MARKER) as request:  # type: ignore[arg-type]  # wrong on purpose
        request.admit(at_ns=MARKER)  # type: ignore[arg-type]  # wrong on purpose
        request.set(max_tokens=MARKER, batch_size=MESSAGES)
        request.usage(input_tokens=MARKER, output_tokens=MESSAGES)  # type: ignore[arg-type]  # wrong on purpose
        request.input_ready()
        wrong: Any = [
            {"event": MARKER, "timestamp": 1},
            {"event": "token", "timestamp": MARKER, "text": MARKER},
            MARKER,
        ]
        request.record(wrong)
        list(request.stream(FRAMES, tokens=count_and_fail))
        request.token(MARKER, MARKER)  # type: ignore[arg-type]  # wrong on purpose
        request.response(finish_reasons=MESSAGES)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.usefixtures("fresh_globals")
@pytest.mark.parametrize("speak", [by_decorators, by_ends, by_marks])
def test_marker_is_found_nowhere(otlp_http: HttpReceiver, caplog: pytest.LogCaptureFixture, speak: Any) -> None:
    """The bytes of every export, spans and metrics, and every line of our log."""
    lifecycle.configure(endpoint=otlp_http.endpoint, token_times=True, compat="vllm")
    with caplog.at_level(logging.DEBUG):
        speak()
        lifecycle.shutdown()
    exported = b"".join(batch.message.SerializeToString() for batch in otlp_http.batches)
    assert otlp_http.spans()
    assert leaks(exported) == []
    ours = [record for record in caplog.records if record.name.startswith("otel_lifecycle")]
    formatter = logging.Formatter()
    assert [line for line in map(formatter.format, ours) if MARKER in line] == []


def leaks(data: bytes) -> list[str]:
    """Return the forms in which the marker, or a telling part of it, is in the bytes."""
    forms = {"text": MARKER.encode(), "part": MARKER[3:14].encode(), "base64": base64.b64encode(MARKER.encode())[:20]}
    return [name for name, form in forms.items() if form in data]


@pytest.mark.usefixtures("fresh_globals")
def test_marker_is_found_where_the_switch_is_on(otlp_http: HttpReceiver) -> None:
    """The search does find it where it is let through: exceptions on spans, asked for by ``record_exceptions``."""
    lifecycle.configure(endpoint=otlp_http.endpoint, record_exceptions=True)
    try:
        by_ends()
    finally:
        lifecycle.shutdown()
        lifecycle.configure(endpoint=otlp_http.endpoint)
        lifecycle.shutdown()
    exported = b"".join(batch.message.SerializeToString() for batch in otlp_http.batches)
    assert "text" in leaks(exported)
