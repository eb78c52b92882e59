"""The table from an exception, a status or a reason to the end of a request."""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import ssl
from http import HTTPStatus
from typing import Any

import pytest

from otel_lifecycle import semconv
from otel_lifecycle._core.ending_rows import ROWS, STATUSES, EndingRow
from otel_lifecycle._core.endings import (
    ENDINGS,
    EndingTable,
    Terminal,
    error_type,
    failure,
)
from otel_lifecycle.errors import ConfigurationError

from .endings import CANCELLED, DEADLINE, LEFT, SEVERAL, SHUTDOWN, TIMED_OUT, Text, by_reason, by_type, explode


def made(name: str, base: type[BaseException] = Exception, **members: Any) -> BaseException:
    """Return an exception of a class with this module and name, as if its library were installed."""
    module, _, bare = name.rpartition(".")
    kind: type[BaseException] = type(bare, (base,), {"__module__": module, **members})
    return kind()


BY_CLASS = [
    (asyncio.CancelledError(), CANCELLED),
    (concurrent.futures.CancelledError(), CANCELLED),
    (GeneratorExit(), CANCELLED),
    (made("trio.Cancelled", BaseException), CANCELLED),
    (made("greenlet.GreenletExit", BaseException), CANCELLED),
    (KeyboardInterrupt(), SHUTDOWN),
    (SystemExit(1), SHUTDOWN),
    (TimeoutError(), TIMED_OUT),
    (asyncio.TimeoutError(), TIMED_OUT),
    (concurrent.futures.TimeoutError(), TIMED_OUT),
    (made("trio.TooSlowError"), TIMED_OUT),
    (made("httpx.ReadTimeout", type(made("httpx.TimeoutException"))), TIMED_OUT),
    (made("openai.APITimeoutError"), TIMED_OUT),
    (made("gevent.timeout.Timeout", BaseException), TIMED_OUT),
    (made("billiard.exceptions.SoftTimeLimitExceeded"), DEADLINE),
    (made("celery.exceptions.Retry"), CANCELLED),
    (MemoryError(), by_reason("out_of_memory")),
    (made("torch.OutOfMemoryError", RuntimeError), by_reason("out_of_memory")),
    (made("torch.cuda.OutOfMemoryError", RuntimeError), by_reason("out_of_memory")),
    (made("cupy.cuda.memory.OutOfMemoryError", MemoryError), by_reason("out_of_memory")),
    (queue.Full(), by_reason("queue_full")),
    (asyncio.QueueFull(), by_reason("queue_full")),
    (made("ray.serve.exceptions.BackPressureError"), by_reason("queue_full")),
    (made("tornado.web.Finish"), Terminal(event="complete")),
    (ValueError(), by_type("ValueError")),
    (ConnectionRefusedError(), by_type("ConnectionRefusedError")),
    (made("queue_of_mine.Full"), by_type("queue_of_mine.Full")),
    (made("my.trio.Cancelled"), by_type("my.trio.Cancelled")),
]


@pytest.mark.parametrize(("error", "ending"), BY_CLASS, ids=lambda one: repr(one)[:60])
def test_c117_an_exception_means_what_its_class_says(error: BaseException, ending: Terminal) -> None:
    """The nearest class along the MRO decides, by its name."""
    assert ENDINGS.of_exception(error) == ending


FRAMEWORKS = [
    "starlette.exceptions.HTTPException/status_code",
    "fastapi.exceptions.HTTPException/status_code",
    "litestar.exceptions.http_exceptions.HTTPException/status_code",
    "aiohttp.web_exceptions.HTTPException/status",
    "tornado.web.HTTPError/status_code",
    "werkzeug.exceptions.HTTPException/code",
    "sanic.exceptions.SanicException/status_code",
]
MEANINGS = [
    (429, by_reason("rate_limited")),
    (503, by_reason("queue_full")),
    (504, DEADLINE),
    (408, DEADLINE),
    (413, by_reason("input_too_long")),
    (499, LEFT),
    (507, by_reason("out_of_memory")),
    (302, CANCELLED),
    (500, by_type("500")),
    (HTTPStatus.TOO_MANY_REQUESTS, by_reason("rate_limited")),
    ("429 Too Many Requests", by_reason("rate_limited")),
]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("status", "ending"), MEANINGS)
def test_c117_the_exception_of_a_framework_means_its_status(framework: str, status: object, ending: Terminal) -> None:
    """Wherever the framework keeps it, and in a subclass too."""
    name, _, attribute = framework.partition("/")
    base = made("starlette.exceptions.HTTPException") if name.startswith("fastapi") else Exception()
    error = made(name, type(base))
    setattr(error, attribute, status)
    below = made("app.Refused", type(error), **{attribute: status})
    assert (ENDINGS.of_exception(error), ENDINGS.of_exception(below)) == (ending, ending)


def test_a_status_of_an_upstream_is_not_the_servers_answer() -> None:
    """Errors of HTTP clients carry the status of somebody else's response."""
    error = made("urllib.error.HTTPError", code=429)
    assert ENDINGS.of_exception(error) == by_type("urllib.error.HTTPError")


CONNECTIONS = [
    BrokenPipeError(),
    ConnectionResetError(),
    ConnectionAbortedError(),
    ssl.SSLEOFError(),
    made("starlette.requests.ClientDisconnect"),
    made("starlette.websockets.WebSocketDisconnect"),
    made("websockets.exceptions.ConnectionClosedError", type(made("websockets.exceptions.ConnectionClosed"))),
    made("anyio.BrokenResourceError"),
    made("aiohttp.client_exceptions.ClientConnectionResetError", ConnectionResetError),
    made("tornado.iostream.StreamClosedError", OSError),
    made("tornado.websocket.WebSocketClosedError"),
    made("uvicorn.protocols.utils.ClientDisconnected", OSError),
    made("waitress.channel.ClientDisconnected"),
]


@pytest.mark.parametrize("error", CONNECTIONS, ids=lambda one: type(one).__name__)
def test_c114_a_broken_connection_is_the_clients_unless_it_came_out_of_the_engine(error: BaseException) -> None:
    """A cancel on the client's side; a failure on the engine's, unless the client is known to have left."""
    assert (
        ENDINGS.of_exception(error),
        ENDINGS.of_exception(error, inside=True),
        ENDINGS.of_exception(error, inside=True, client_left=True),
    ) == (LEFT, by_type(error_type(error)), LEFT)


def test_c114_a_cancellation_after_the_client_left_takes_that_reason() -> None:
    """At the deadline it is still a timeout."""
    error = asyncio.CancelledError()
    assert (
        ENDINGS.of_exception(error, client_left=True),
        ENDINGS.of_exception(error, client_left=True, past_deadline=True),
    ) == (LEFT, DEADLINE)


def test_a_cancellation_or_timeout_at_the_deadline_is_the_deadlines_doing() -> None:
    """A failure stays one."""
    errors = (asyncio.CancelledError(), TimeoutError(), ValueError(), KeyboardInterrupt())
    assert [ENDINGS.of_exception(error, past_deadline=True) for error in errors] == [
        DEADLINE,
        DEADLINE,
        by_type("ValueError"),
        SHUTDOWN,
    ]


class Group(Exception):
    """A group as the backport for Python 3.10 has it: known by the name of its base."""

    def __init__(self, *exceptions: BaseException) -> None:
        super().__init__("of several")
        self.exceptions: Any = exceptions


Group.__name__ = Group.__qualname__ = "BaseExceptionGroup"

GROUPS = [
    (Group(ValueError()), by_type("ValueError")),
    (Group(ValueError(), Group(ValueError(), ValueError())), by_type("ValueError")),
    (Group(ValueError(), KeyError()), SEVERAL),
    (Group(ValueError(), asyncio.CancelledError()), SEVERAL),
    (Group(TimeoutError(), Group(TimeoutError())), TIMED_OUT),
    (Group(asyncio.CancelledError()), CANCELLED),
    (Group(KeyboardInterrupt(), SystemExit()), SHUTDOWN),
    (Group(BrokenPipeError(), ConnectionResetError()), LEFT),
    (Group(), by_type(f"{__name__}.BaseExceptionGroup")),
]


@pytest.mark.parametrize(("error", "ending"), GROUPS, ids=lambda one: repr(one)[:40])
def test_c96_a_group_counts_as_its_leaves(error: BaseException, ending: Terminal) -> None:
    """Members that end a request alike are one end; others are an ExceptionGroup."""
    assert ENDINGS.of_exception(error) == ending


def test_c96_fail_takes_the_one_type_of_a_group() -> None:
    """``fail(group)`` is a failure whatever is in it."""
    assert [failure(Group(ValueError())), failure(Group(TimeoutError())), failure(Group(ValueError(), KeyError()))] == [
        by_type("ValueError"),
        by_type("TimeoutError"),
        SEVERAL,
    ]


def nested(depth: int) -> BaseException:
    """Return a ValueError inside so many groups."""
    error: BaseException = ValueError()
    for _ in range(depth):
        error = Group(error)
    return error


def looped() -> BaseException:
    """Return a group that contains itself beside a ValueError."""
    error = Group()
    error.exceptions = (error, ValueError(), error)
    return error


def test_deep_and_looped_groups_end() -> None:
    """Neither depth nor a cycle matters."""
    assert [ENDINGS.of_exception(error) for error in (nested(1_200), looped())] == [by_type("ValueError")] * 2


def test_a_group_beyond_the_maximum_counts_as_several_types() -> None:
    """Looking at all of it would hold the serving thread."""
    assert ENDINGS.of_exception(Group(*[ValueError()] * 3, *(ValueError() for _ in range(20_000)))) == SEVERAL


class Meta(type):
    """A metaclass that answers nothing."""

    __getattribute__ = explode


HOSTILE = [
    (made("x.Boom", __getattr__=explode), "x.Boom"),
    (made("x.Boom", __getattribute__=explode), "x.Boom"),
    (made("x.Boom", __class__=property(explode)), "x.Boom"),
    (made("x.Boom", __module__=property(explode)), "Boom"),
    (made("x.Boom", __module__=7), "Boom"),
    (made("x.Boom", __module__=Text("x")), "x.Boom"),
    (made("x.BaseExceptionGroup", exceptions=property(explode)), "x.BaseExceptionGroup"),
    (made("x.BaseExceptionGroup", exceptions=7), "x.BaseExceptionGroup"),
    (made("x.BaseExceptionGroup", exceptions=("a", None)), "x.BaseExceptionGroup"),
    (made("sanic.exceptions.SanicException", status_code=property(explode)), "sanic.exceptions.SanicException"),
    (made("sanic.exceptions.SanicException", status_code=10**5000), "sanic.exceptions.SanicException"),
    (made("sanic.exceptions.SanicException", status_code=Text("no")), "sanic.exceptions.SanicException"),
    (type.__call__(type.__new__(Meta, "Boom", (Exception,), {"__module__": "x"})), "x.Boom"),
    (made("x.a name with spaces", ValueError), "ValueError"),
    (made("x.a name with spaces"), semconv.OTHER),
    (made("x." + "n" * 65, KeyError), "KeyError"),
    (made("m" * 65 + ".Boom"), "Boom"),
]


@pytest.mark.parametrize(("error", "name"), HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_exception_is_a_failure_by_its_type(error: BaseException, name: str) -> None:
    """Nothing that its class or its attributes do gets out."""
    assert (ENDINGS.of_exception(error), failure(error)) == (by_type(name), by_type(name))


FAILURES = [
    (None, by_type(semconv.OTHER)),
    ("rate_limited", by_reason("rate_limited")),
    ("my.Error", by_type("my.Error")),
    ("no route to host 10.0.0.7", Terminal(event="fail", reason=semconv.OTHER, error_type=semconv.OTHER)),
    ("x" * 65, Terminal(event="fail", reason=semconv.OTHER, error_type=semconv.OTHER)),
    ("", Terminal(event="fail", reason=semconv.OTHER, error_type=semconv.OTHER)),
    (7, Terminal(event="fail", reason=semconv.OTHER, error_type=semconv.OTHER)),
    (Text("rate_limited"), by_reason("rate_limited")),
    (ValueError, by_type("ValueError")),
    (ValueError("text that must not become a label"), by_type("ValueError")),
    (MemoryError(), by_reason("out_of_memory")),
    (TimeoutError(), by_type("TimeoutError")),
    (BrokenPipeError(), by_type("BrokenPipeError")),
    (int, Terminal(event="fail", reason=semconv.OTHER, error_type=semconv.OTHER)),
]


@pytest.mark.parametrize(("error", "ending"), FAILURES, ids=range(len(FAILURES)))
def test_fail_is_a_failure_and_keeps_no_free_text(error: object, ending: Terminal) -> None:
    """The server's word for the event stands; reason and type come from closed or checked names."""
    assert failure(error) == ending


def test_rows_and_statuses_draw_on_the_closed_lists() -> None:
    """No row has a reason of its own, and no class has two rows."""
    reasons = {row.reason for row in ROWS} | {ending.reason for ending in STATUSES.values()}
    assert reasons - semconv.REASONS == {None}
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_rows_of_the_server_go_before_the_built_in_ones() -> None:
    """A class of its own, one below a built-in, and one in place of a built-in."""
    table = ENDINGS.extended(
        {"app.Gone": "cancel:client_disconnected", "TimeoutError": "fail:engine_error", "app.Busy": "fail"}
    )
    gone = made("app.errors.Gone")
    assert [
        table.of_exception(gone),
        table.of_exception(gone, inside=True),
        table.of_exception(TimeoutError()),
        table.of_exception(made("app.Busy", MemoryError)),
        ENDINGS.of_exception(TimeoutError()),
    ] == [LEFT, LEFT, by_reason("engine_error"), by_type("app.Busy"), TIMED_OUT]


@pytest.mark.parametrize(
    "endings",
    [
        {"app.Gone": "cancelled"},
        {"app.Gone": "cancel:because"},
        {"app.Gone": ""},
        {"app.Gone": None},
        {"app..Gone": "cancel"},
        {"": "cancel"},
        {7: "cancel"},
        ["app.Gone"],
    ],
)
def test_a_row_that_makes_no_sense_is_refused(endings: Any) -> None:
    """At set-up, with what would be right."""
    with pytest.raises(ConfigurationError, match="must"):
        ENDINGS.extended(endings)


def test_a_more_exact_module_goes_first() -> None:
    """Whatever the order of the rows."""
    rows = (
        EndingRow(name="Boom", meaning="cancel"),
        EndingRow(name="a.b.Boom", meaning="fail", reason="engine_error"),
        EndingRow(name="a.Boom", meaning="timeout"),
    )
    assert [EndingTable(rows).of_exception(made(name)) for name in ("a.b.c.Boom", "a.Boom", "ab.Boom")] == [
        by_reason("engine_error"),
        TIMED_OUT,
        CANCELLED,
    ]
