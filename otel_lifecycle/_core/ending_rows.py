"""The table of endings: which exception classes and HTTP statuses end a request, and how.

Classes are named as text, because the frameworks they belong to need not be installed.  A row matches a class of that
name in that module or below it; a row without a module matches the name anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

LEFT: Final = "client_disconnected"

Meaning: TypeAlias = Literal["cancellation", "connection", "cancel", "timeout", "fail", "complete", "status", "attempt"]
"""What a row says of its class.

``cancellation``: the task was cancelled; at the deadline a timeout, and after the client left its doing.
``connection``: a connection broke; the client's is a cancel, the engine's a failure.
``status``: the exception carries an HTTP status, which decides.
``attempt``: this attempt is given up for another one, whatever it failed by.  The others are the terminal event itself.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndingRow:
    """One row: a class, what it means, and the reason that goes with it."""

    name: str
    meaning: Meaning
    reason: str | None = None


def _rows(meaning: Meaning, reason: str | None, *names: str) -> tuple[EndingRow, ...]:
    return tuple(EndingRow(name=name, meaning=meaning, reason=reason) for name in names)


ROWS: Final[tuple[EndingRow, ...]] = (
    # A server closes the generator of an answer when its client leaves, so GeneratorExit is a cancellation too.
    *_rows("cancellation", None, "CancelledError", "GeneratorExit", "trio.Cancelled", "GreenletExit"),
    *_rows("cancellation", None, "ray.exceptions.TaskCancelledError", "ray.serve.exceptions.RequestCancelledError"),
    # The process is told to stop; nothing is wrong with the request.
    *_rows("cancel", "shutdown", "KeyboardInterrupt", "SystemExit"),
    # The next attempt is a request of its own; this one neither succeeded nor failed.
    *_rows("attempt", None, "celery.exceptions.Retry", "celery.exceptions.Ignore", "celery.exceptions.Reject"),
    *_rows("timeout", None, "TimeoutError", "TimeoutException", "trio.TooSlowError", "requests.exceptions.Timeout"),
    *_rows("timeout", None, "APITimeoutError", "gevent.Timeout", "eventlet.timeout.Timeout", "ServerTimeoutError"),
    *_rows("timeout", "deadline", "SoftTimeLimitExceeded", "TimeLimitExceeded", "DeadlineExceeded"),
    # The class does not say whose connection broke: where the exception comes from does (EndingTable.of_exception).
    *_rows("connection", LEFT, "BrokenPipeError", "ConnectionResetError", "ConnectionAbortedError"),
    *_rows("connection", LEFT, "ssl.SSLEOFError", "ssl.SSLZeroReturnError", "anyio.BrokenResourceError"),
    *_rows("connection", LEFT, "anyio.ClosedResourceError", "trio.BrokenResourceError", "trio.ClosedResourceError"),
    *_rows("connection", LEFT, "ClientDisconnect", "ClientDisconnected", "WebSocketDisconnect"),
    *_rows("connection", LEFT, "websockets.ConnectionClosed", "websockets.exceptions.ConnectionClosed"),
    *_rows("connection", LEFT, "tornado.iostream.StreamClosedError", "tornado.websocket.WebSocketClosedError"),
    *_rows("connection", LEFT, "sanic.exceptions.WebsocketClosed", "wsproto.utilities.LocalProtocolError"),
    *_rows("fail", "out_of_memory", "MemoryError", "OutOfMemoryError", "tensorflow.ResourceExhaustedError"),
    *_rows("fail", "queue_full", "queue.Full", "asyncio.QueueFull", "ray.serve.exceptions.BackPressureError"),
    *_rows("fail", "rate_limited", "TooManyRequests", "RateLimitError", "RateLimitExceeded"),
    # Handlers raise it to leave early, after they have answered.
    *_rows("complete", None, "tornado.web.Finish"),
    # Frameworks raise one class for redirects, client errors and server errors, so only its status tells the end.
    *_rows("status", None, "starlette.exceptions.HTTPException", "litestar.exceptions.HTTPException"),
    *_rows("status", None, "aiohttp.web_exceptions.HTTPException", "tornado.web.HTTPError", "falcon.HTTPError"),
    *_rows("status", None, "werkzeug.exceptions.HTTPException", "sanic.exceptions.SanicException"),
    *_rows("status", None, "rest_framework.exceptions.APIException", "bentoml.exceptions.BentoMLException"),
    # Without a status it came inside a stream, and is a failure.
    *_rows("status", None, "ollama._types.ResponseError"),
)
"""The table.  ``configure(endings=…)`` adds rows that go before it."""


@dataclass(frozen=True, slots=True)
class Terminal:
    """A terminal event with its reason and error type.  It holds no exception, and so no frame stays alive with it.

    ``complete`` as the ending of an exception means that the block counts as left normally.  ``decided``: it stands
    whatever came out of the engine before.
    """

    event: Literal["complete", "cancel", "timeout", "fail"]
    reason: str | None = None
    error_type: str | None = None
    decided: bool = field(default=False, compare=False)


def failing(reason: str) -> Terminal:
    return Terminal(event="fail", reason=reason, error_type=reason)


STATUSES: Final[Mapping[int, Terminal]] = {
    400: failing("bad_input"),
    404: failing("bad_input"),
    405: failing("bad_input"),
    408: Terminal(event="timeout", reason="deadline", error_type="timeout"),
    413: failing("input_too_long"),
    415: failing("bad_input"),
    422: failing("bad_input"),
    429: failing("rate_limited"),
    # The code of nginx for a client that closed the request.
    499: Terminal(event="cancel", reason=LEFT),
    # Inference servers answer 503 when they take no more requests; a broken engine is a 500.
    503: failing("queue_full"),
    504: Terminal(event="timeout", reason="deadline", error_type="timeout"),
    507: failing("out_of_memory"),
}
"""What an HTTP status means.  Any other one from 400 on is itself the error type, as in HTTP's conventions."""

# Without a reason: an engine's abort does not say who asked for it.
_ABORTED: Final = Terminal("cancel")
_OUT_OF_TIME: Final = Terminal("timeout", "deadline", "timeout")
_BROKEN: Final = Terminal("fail", "engine_error", "engine_error")

FINISH_REASONS: Final[Mapping[str, Terminal]] = {
    "abort": _ABORTED,
    "aborted": _ABORTED,
    "cancel": _ABORTED,
    "cancelled": _ABORTED,
    "canceled": _ABORTED,
    "abandoned": Terminal("cancel", "abandoned"),
    "client_disconnected": Terminal("cancel", LEFT),
    "shutdown": Terminal("cancel", "shutdown"),
    # A bare timeout does not say which limit passed; only the words below do.
    "timeout": Terminal("timeout", None, "timeout"),
    "timed_out": Terminal("timeout", None, "timeout"),
    "deadline": _OUT_OF_TIME,
    "deadline_exceeded": _OUT_OF_TIME,
    "queue_timeout": Terminal("timeout", "queue_timeout", "timeout"),
    "error": _BROKEN,
    "fail": _BROKEN,
    "failed": _BROKEN,
    "failure": _BROKEN,
    "engine_error": _BROKEN,
    "queue_full": failing("queue_full"),
    "rate_limited": failing("rate_limited"),
    "input_too_long": failing("input_too_long"),
    "bad_input": failing("bad_input"),
    "out_of_memory": failing("out_of_memory"),
}
"""An engine's word for why it stopped, in lower case.  Any other (stop, length …) is a normal completion."""
