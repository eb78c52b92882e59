"""gRPC: each call of chosen methods, on a ``grpc.server`` or a ``grpc.aio.server``.

    server = grpc.aio.server(interceptors=[LifecycleInterceptor(methods=["/inference.GRPCInferenceService/*"])])

A call arrives when its handler is called.  Its parent is the trace context in its metadata, and the deadline that the
client gave is the request's.  The request is current while the handler runs and while each of its responses is made;
the handler finds it by ``lifecycle.current()``.  A call that is cancelled is a cancel, one that runs out of time a
timeout, and a status that the handler sets or aborts with ends it by the table below.

gRPC has three kinds of handlers (functions in a thread, coroutines, and generators of either kind) and looks at the
function itself to tell them apart.  A handler is therefore wrapped by one of its own kind.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Final

import grpc
import grpc.aio
from opentelemetry.context import attach, get_current
from opentelemetry.trace import TracerProvider

from otel_lifecycle._core.endings import COMPLETE, Terminal, cancellation, failure, past, timeout
from otel_lifecycle._core.exceptions_read import class_name
from otel_lifecycle._core.lifecycle import get_shape
from otel_lifecycle._core.text import is_a, shown
from otel_lifecycle._core.values import seconds
from otel_lifecycle._guard import guarded
from otel_lifecycle._http.caller import caller_context
from otel_lifecycle._http.reading import plain_bytes, plain_text
from otel_lifecycle._http.routes import check_conditions, items_of
from otel_lifecycle._request.context import detach_own
from otel_lifecycle.driver import Driver, begin
from otel_lifecycle.errors import ConfigurationError
from otel_lifecycle.types import TokenCounter

__all__ = ["STATUSES", "LifecycleInterceptor"]

STATUSES: Final = {
    "OK": COMPLETE,
    "CANCELLED": cancellation(),
    "DEADLINE_EXCEEDED": timeout("deadline"),
    "INVALID_ARGUMENT": failure("bad_input"),
    "NOT_FOUND": failure("bad_input"),
    "OUT_OF_RANGE": failure("bad_input"),
    "RESOURCE_EXHAUSTED": failure("rate_limited"),
    "UNAVAILABLE": failure("queue_full"),
    "UNIMPLEMENTED": failure("bad_input"),
}
"""How a status code ends a request; any other is its error type."""


# One class for both servers, each of which checks the type of its interceptors.
class LifecycleInterceptor(grpc.ServerInterceptor, grpc.aio.ServerInterceptor):
    """Makes each call of the given methods an inference request; every other call passes untouched.

    ``methods``: full names, ``"/package.Service/Method"``, or ``"/package.Service/*"`` for all of a service.
    ``tokens``: from one response to how many tokens it holds (0, n, or None for unknown).  Left out, a response of a
    streaming method is a chunk of unknown size and one of a unary method a whole answer of unknown size, unless the
    handler marks its own.  ``shape``, ``tracer_provider`` and ``conditions``: as for :func:`otel_lifecycle.request`.
    A call does not show the address it came in by: ``server_address`` and ``server_port`` are on the span if given.

    Raises ConfigurationError for an argument that makes no sense.
    """

    def __init__(
        self,
        methods: Iterable[str],
        *,
        tokens: TokenCounter | None = None,
        shape: str = "default",
        tracer_provider: TracerProvider | None = None,
        **conditions: Any,
    ) -> None:
        self._exact, self._services = _read_methods(methods)
        if tokens is not None and not callable(tokens):
            raise ConfigurationError(f"tokens is {shown(tokens)}; it must be a callable")
        self._tokens = tokens
        self._shape = get_shape(shape).name
        self._provider = tracer_provider
        self._conditions = check_conditions(conditions)

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        """Return the handler of a call, wrapped if its method is followed; on an aio server, a coroutine for it."""
        found = continuation(handler_call_details)
        follows = self._follows(handler_call_details.method)
        # grpc.aio hands over a continuation that has to be awaited; this method itself must be sync for grpc.server.
        if inspect.isawaitable(found):
            return self._wrapped_later(found, follows=follows)
        return _wrap(found, self) if follows else found

    async def _wrapped_later(self, found: Any, *, follows: bool) -> Any:
        handler = await found
        return _wrap(handler, self) if follows else handler

    def _follows(self, method: object) -> bool:
        name = plain_bytes(method).decode("utf-8", "replace") or plain_text(method)
        return name in self._exact or name.rpartition("/")[0] in self._services

    def open(self, context: Any) -> _Call:
        """Open the request of one call."""
        remaining = seconds(_asked(context, "time_remaining"))
        # A call may arrive at its deadline, and a deadline of 0 is not a valid value.
        deadline = None if remaining is None else max(remaining, 1e-3)
        parent = caller_context(_asked(context, "invocation_metadata"))
        driver = begin(
            {**self._conditions, **({} if deadline is None else {"deadline": deadline})},
            shape=self._shape,
            parent=parent,
            tracer_provider=self._provider,
        )
        return _Call(driver, parent if driver.owned else get_current(), context, self._tokens, deadline)


class _Call:
    """One call: its request, and how it ends."""

    __slots__ = ("_context", "_deadline", "_driver", "_on_loop", "_parent", "_tokens", "over")

    def __init__(
        self, driver: Driver, parent: Any, context: Any, tokens: TokenCounter | None, deadline: float | None
    ) -> None:
        self._deadline = deadline
        self._driver = driver
        self._parent = parent
        self._context = context
        self._tokens = tokens
        self.over = False
        # gRPC calls this back at every end of a call, also when the client cancels while the handler still runs.
        self._on_loop = not hasattr(context, "add_callback")
        if not self._on_loop:
            context.add_callback(self._terminated)

    def _terminated(self, *_: Any) -> None:
        # At the deadline the server ends the call, with or without a client.
        # Runs on a thread of gRPC's, while the handler may still run, so it only takes a note.
        at_deadline = past(self._driver.since_arrival_ns(), self._deadline)
        if not self.over and not self._driver.ended and not at_deadline:
            guarded("a call", self._driver.mark, "client_disconnected")

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call with the request current."""
        # Around each step, because between two responses gRPC uses the thread for other calls.
        token = attach(self._parent)
        try:
            with self._driver.active():
                return function(*arguments)
        finally:
            detach_own(token)

    async def wait(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Await a call with the request current."""
        token = attach(self._parent)
        try:
            with self._driver.active():
                return await function(*arguments)
        finally:
            detach_own(token)

    def marks(self) -> int:
        """Return how many tokens are marked so far."""
        return self._driver.token_marks

    def took(self, response: Any, marks: int) -> None:
        """Count one response of a stream; not if its handler marked tokens of its own since ``marks``."""
        if self._driver.token_marks == marks:
            self._driver.item(self._counted(response))

    def answered(self, response: Any) -> None:
        """Treat the response of a unary method as the whole answer, unless the handler set a status of failure."""
        if self._driver.awaits_output and self._status() in (None, COMPLETE):
            self._driver.answer(self._counted(response))
        self.leave(None)

    def _counted(self, response: Any) -> int | None:
        return None if self._tokens is None else self._driver.count_of(self._tokens, response)

    def delivered(self) -> None:
        """The first response is out."""
        self._driver.mark("delivered")

    def leave(self, error: BaseException | None) -> None:
        """The handler has returned, or ``error`` left it."""
        if self._on_loop and _is_torn_down(error):
            # No callback comes on an event loop before the handler is cancelled, and it is cancelled for nothing else
            # but a client that left or a server that stops; gRPC does not tell which.
            self._terminated()
        # From here on the callback marks the normal end of the call and says nothing about the client.
        self.over = True
        terminal = self._status()
        if error is not None and (terminal is None or not _is_abort(error)):
            self._driver.leave(error)
        elif terminal is None or terminal == COMPLETE:
            self._driver.answered()
        else:
            self._driver.end(terminal)

    def _status(self) -> Terminal | None:
        """Return what the status that the handler set means; None if it set none."""
        code = _asked(self._context, "code")
        if is_a(code, grpc.StatusCode):
            name = code.name
        else:
            # A handler sets a StatusCode; the context of grpc.aio keeps only its number.
            number = code if type(code) is int else None
            name = next((one.name for one in grpc.StatusCode if one.value[0] == number), None)
        return None if name is None else STATUSES.get(name) or failure(name)


def _asked(context: Any, name: str) -> Any:
    """Return what a method of a call's context gives; None where it has none, or raises.

    The contexts of test doubles and of other interceptors may lack it.
    """
    try:
        return getattr(context, name)()
    except Exception:  # noqa: BLE001  # the context is not ours
        return None


def _is_torn_down(error: BaseException | None) -> bool:
    """Whether the handler's task was cancelled from outside, or its generator dropped."""
    if not isinstance(error, asyncio.CancelledError):
        return isinstance(error, GeneratorExit)
    # Before Python 3.11 a task does not know whether it was cancelled or has awaited something that was.
    cancelling = getattr(asyncio.current_task(), "cancelling", None)
    return cancelling is None or cancelling() > 0


def _is_abort(error: BaseException) -> bool:
    """Whether ``context.abort`` raised it: a bare Exception in a thread, an AbortError on an event loop."""
    return type(error) is Exception or class_name(type(error)) == "AbortError"


def _wrap(handler: Any, interceptor: LifecycleInterceptor) -> Any:
    """Return a handler of the same kind, with the same (de)serialisers, around this one; None for a method unknown."""
    if handler is None:
        return None
    kind = f"{'stream' if handler.request_streaming else 'unary'}_{'stream' if handler.response_streaming else 'unary'}"
    function = getattr(handler, kind)
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    wrap = _streaming if handler.response_streaming else _unary
    return make(
        wrap(function, interceptor),
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


def _unary(function: Callable[..., Any], interceptor: LifecycleInterceptor) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        async def coroutine(request: Any, context: Any) -> Any:
            call = interceptor.open(context)
            try:
                response = await call.wait(function, request, context)
            except BaseException as error:
                call.leave(error)
                raise
            guarded("a call", call.answered, response)
            return response

        return coroutine

    def in_thread(request: Any, context: Any) -> Any:
        call = interceptor.open(context)
        try:
            response = call.run(function, request, context)
        except BaseException as error:
            call.leave(error)
            raise
        guarded("a call", call.answered, response)
        return response

    return in_thread


def _streaming(function: Callable[..., Any], interceptor: LifecycleInterceptor) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):
        return _writing(function, interceptor)
    return (
        _yielding_async(function, interceptor)
        if inspect.isasyncgenfunction(function)
        else _yielding(function, interceptor)
    )


def _yielding(function: Callable[..., Any], interceptor: LifecycleInterceptor) -> Callable[..., Any]:
    def responses(request: Any, context: Any) -> Iterator[Any]:
        call = interceptor.open(context)
        end = object()
        iterator: Any = None
        try:
            iterator = call.run(lambda: iter(function(request, context)))
            while True:
                marks = call.marks()
                response = call.run(next, iterator, end)
                if response is end:
                    break
                guarded("a call", call.took, response, marks)
                # gRPC resumes the generator after it has sent this response, so only then is it delivered.
                yield response
                guarded("a call", call.delivered)
        except BaseException as error:
            # The server drops a call that is over; the handler's own clean-up runs with it.
            call.leave(error)
            if hasattr(iterator, "close"):
                iterator.close()
            raise
        call.leave(None)

    return responses


def _yielding_async(function: Callable[..., Any], interceptor: LifecycleInterceptor) -> Callable[..., Any]:
    async def responses(request: Any, context: Any) -> AsyncIterator[Any]:
        call = interceptor.open(context)
        iterator = function(request, context)
        try:
            while True:
                marks = call.marks()
                try:
                    response = await call.wait(iterator.__anext__)
                except StopAsyncIteration:
                    break
                guarded("a call", call.took, response, marks)
                yield response
                guarded("a call", call.delivered)
        except BaseException as error:
            call.leave(error)
            # After the end is marked: the handler's clean-up may wait, and is not part of the request.
            await iterator.aclose()
            raise
        call.leave(None)

    return responses


def _writing(function: Callable[..., Any], interceptor: LifecycleInterceptor) -> Callable[..., Any]:
    async def coroutine(request: Any, context: Any) -> None:
        call = interceptor.open(context)
        try:
            await call.wait(function, request, _WatchedContext(context, call))
        except BaseException as error:
            call.leave(error)
            raise
        call.leave(None)

    return coroutine


class _WatchedContext:
    """The context of a call whose handler writes its responses by itself: each of them is looked at."""

    def __init__(self, context: Any, call: _Call) -> None:
        self._context = context
        self._call = call
        self._marks = call.marks()

    # A proxy, because the context of grpc.aio is a Cython object whose write() cannot be replaced.
    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def write(self, message: Any) -> None:
        """Send one response."""
        guarded("a call", self._call.took, message, self._marks)
        # From here on, new marks are the handler's own.
        self._marks = self._call.marks()
        await self._context.write(message)
        guarded("a call", self._call.delivered)


def _read_methods(methods: object) -> tuple[frozenset[str], frozenset[str]]:
    names = items_of(methods, f"methods is {shown(methods)}; it must be a list such as ['/package.Service/*']")
    for name in names:
        if not is_a(name, str) or name[:1] != "/" or name.count("/") != 2 or name.endswith("/"):
            raise ConfigurationError(f"the method {shown(name)} is none; it must be like '/package.Service/Method'")
    services = {name[: -len("/*")] for name in names if name.endswith("/*")}
    return frozenset(name for name in names if not name.endswith("/*")), frozenset(services)
