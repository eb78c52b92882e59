"""How an exception ends a request, and what a reason or an error becomes on the wire."""

from __future__ import annotations

import asyncio
import concurrent.futures
from dataclasses import dataclass
from typing import Final

from otel_lifecycle import semconv
from otel_lifecycle._core.text import is_identifier

TIMEOUTS: Final = (TimeoutError, asyncio.TimeoutError, concurrent.futures.TimeoutError)
CANCELLATIONS: Final = (asyncio.CancelledError, GeneratorExit, concurrent.futures.CancelledError)
SHUTDOWNS: Final = (KeyboardInterrupt, SystemExit)

TRIO_TIMEOUT: Final = ("trio", "TooSlowError")
TRIO_CANCELLATION: Final = ("trio", "Cancelled")

TOLERANCE_NS: Final = 10_000_000
TOLERANCE_SHARE: Final = 0.01


class Settings:
    """Whether an exception leaves its message and stack on the span, or its type alone."""

    __slots__ = ("record_exceptions",)

    def __init__(self) -> None:
        self.record_exceptions = False


settings = Settings()


@dataclass(frozen=True, slots=True)
class Ending:
    """A terminal event, with what is told of it."""

    event: str
    reason: str | None = None
    error_type: str | None = None
    exception: BaseException | None = None


def reason_of(reason: object) -> str | None:
    """Return a reason of the closed list; anything else that was given is ``_OTHER``."""
    if reason is None:
        return None
    return reason if isinstance(reason, str) and reason in semconv.REASONS else semconv.OTHER


def error_type(error: BaseException | type[BaseException]) -> str:
    """Return the qualified name of an exception's class; ``_OTHER`` where it is no identifier."""
    kind = error if isinstance(error, type) else type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return name if is_identifier(name) else kind.__name__ if is_identifier(kind.__name__) else semconv.OTHER


def failure(error: object) -> Ending:
    """Return the ending of ``fail(error)``: an exception, a reason, or an error type.  Free text is ``_OTHER``."""
    if error is None:
        return Ending("fail", None, semconv.OTHER)
    if isinstance(error, BaseException):
        return Ending("fail", None, error_type(error), error)
    if isinstance(error, type) and issubclass(error, BaseException):
        return Ending("fail", None, error_type(error))
    if isinstance(error, str) and error in semconv.REASONS:
        return Ending("fail", error, error)
    named = isinstance(error, str) and is_identifier(error)
    return Ending("fail", None if named else semconv.OTHER, str(error) if named else semconv.OTHER)


def timeout(reason: object) -> Ending:
    """Return the ending of ``timeout(reason)``."""
    return Ending("timeout", reason_of(reason), "timeout")


def cancellation(reason: object) -> Ending:
    """Return the ending of ``cancel(reason)``."""
    return Ending("cancel", reason_of(reason))


def of_exception(error: BaseException, *, past_deadline: bool) -> Ending:
    """Return how an exception that leaves the block ends its request.

    A cancellation at the deadline is the deadline's doing: ``asyncio.wait_for`` and ``asyncio.timeout`` deliver it as
    CancelledError inside the coroutine.
    """
    if _is_all(error, SHUTDOWNS):
        return cancellation("shutdown")
    if _is_all(error, TIMEOUTS, TRIO_TIMEOUT):
        return timeout("deadline" if past_deadline else None)
    if _is_all(error, CANCELLATIONS, TRIO_CANCELLATION):
        return timeout("deadline") if past_deadline else cancellation(None)
    return failure(error)


def past(elapsed_ns: int, deadline_s: float | None) -> bool:
    """Return whether the deadline has come, less 10 ms or 1 %, whichever is more: its timer starts before our clock."""
    if deadline_s is None:
        return False
    deadline_ns = deadline_s * 1e9
    return elapsed_ns >= deadline_ns - max(TOLERANCE_NS, TOLERANCE_SHARE * deadline_ns)


def _is_all(error: BaseException, kinds: tuple[type[BaseException], ...], trio: tuple[str, str] | None = None) -> bool:
    """Whether the error, or every leaf of it if it is a group (as trio's nurseries raise), is of these kinds."""
    inner = getattr(error, "exceptions", None)
    if inner and isinstance(inner, tuple):
        return all(_is_all(one, kinds, trio) for one in inner)
    # trio need not be installed, so its classes go by their names.
    return isinstance(error, kinds) or (type(error).__module__.partition(".")[0], type(error).__name__) == trio
