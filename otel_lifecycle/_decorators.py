"""``traced``: a whole function as a request.

The request opens at the call.  While the function runs, and during each step of what it yields or returns, the request
is current.  A boundary that nobody marks passes with an unknown time before the first output; a generator that is never
iterated opens nothing.  Where an unended request is current already, the function acts on that one and leaves its end
to its owner.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from contextvars import Token
from types import MethodType
from typing import Any, TypeVar, overload

from opentelemetry.context import Context, attach, detach, get_current

from otel_lifecycle._core.lifecycle import get_shape
from otel_lifecycle._core.text import shown
from otel_lifecycle._request.clock import NOW, Anchor, AtNs, anchor
from otel_lifecycle._request.conditions import check_names, check_role, given
from otel_lifecycle._request.handle import NoRequest, Request, leave
from otel_lifecycle._request.opening import open_request
from otel_lifecycle._request.scope import context_of, detach_own, in_context
from otel_lifecycle._request.streams import Counter, Source, Unmarked, async_stream, count_of, sync_stream
from otel_lifecycle.errors import ConfigurationError

Function = TypeVar("Function", bound=Callable[..., Any])


class _Opener:
    """What ``traced`` was given, checked once: how each call's request is opened."""

    __slots__ = ("_options", "_values", "tokens")

    def __init__(self, tokens: Counter | None, arguments: dict[str, Any]) -> None:
        self.tokens = tokens
        self._options = {
            "shape": get_shape(arguments.pop("shape", "default")).name,
            "arrived_at_ns": arguments.pop("arrived_at_ns", NOW),
            "previous": arguments.pop("previous", None),
            "tracer_provider": arguments.pop("tracer_provider", None),
        }
        check_role(arguments.get("role", "whole"))
        check_names(arguments)
        self._values = given(arguments)

    def open(self, started: Anchor | None = None, parent: Context | None = None) -> _Call:
        """Open the request of a call that began at ``started`` in the context ``parent``; join the current one."""
        outer = in_context()
        if outer is not None:
            return _Call(outer, owned=False, tokens=self.tokens)
        handle = open_request(self._values, **self._options, started=started, parent=parent, unmarked=True)
        return _Call(handle, owned=True, tokens=self.tokens)


class _Call:
    """One call: its request, and whether ending it is ours."""

    __slots__ = ("_owned", "_tokens", "handle")

    def __init__(self, handle: Request, *, owned: bool, tokens: Counter | None) -> None:
        self.handle = handle
        self._owned = owned
        self._tokens = tokens

    @property
    def live(self) -> bool:
        """Whether there is anything to do."""
        return not isinstance(self.handle, NoRequest)

    def attach(self) -> Token[Context]:
        """Make the request current; give the result to ``detach``."""
        return attach(context_of(self.handle._record, get_current()))

    def leave(self, error: BaseException | None) -> None:
        """End the request by what left the function, if ending it is ours."""
        if self._owned:
            leave(self.handle._record, error)

    def returned(self, result: Any) -> Any:
        """Take a function's result: wrap it if it goes on, else it is the whole answer."""
        if hasattr(result, "body_iterator"):
            result.body_iterator = self.stream(result.body_iterator)
            return result
        if hasattr(result, "__aiter__") or hasattr(result, "__next__"):
            return self.stream(result)
        if inspect.isawaitable(result):
            return self.awaited(result)
        record = self.handle._record
        if self._owned and record.awaits_output:
            record.whole_answer(count_of(record, self._tokens, result) if self._tokens is not None else None)
        self.leave(None)
        return result

    async def awaited(self, awaitable: Any) -> Any:
        """Await what a function gave back instead of its result, and take the result."""
        token = self.attach()
        try:
            result = await awaitable
        except BaseException as error:
            self.leave(error)
            raise
        finally:
            detach_own(token)
        return self.returned(result)

    def source(self, iterable: Any) -> Source:
        """Return what yields tokens together with its request; the end of the one is the end of the other."""
        return Source(self.handle, iterable, self._tokens, leave=self.leave, traced=True)

    def stream(self, iterable: Any) -> Any:
        """Wrap what yields tokens."""
        wrap = async_stream if hasattr(iterable, "__aiter__") else sync_stream
        return wrap(lambda: self.source(iterable))


@overload
def traced(function: Function, /) -> Function: ...
@overload
def traced(
    *,
    tokens: Counter | None = None,
    arrived_at_ns: AtNs = NOW,
    shape: str = "default",
    **arguments: Any,
) -> Callable[[Function], Function]: ...
def traced(function: Any = None, /, *, tokens: Counter | None = None, **arguments: Any) -> Any:
    """Make a function a request, and each item it yields a token.  ``@traced`` and ``@traced(model=..., ...)``.

    Takes the arguments of :func:`otel_lifecycle.request`, and ``tokens``: from an item, or from a plain result, to the
    number of tokens in it (0, n, or None for unknown).  Right for a function, a coroutine, a generator, an async
    generator, and a function or coroutine whose result is an iterator, has ``__aiter__`` or is a response with a
    ``body_iterator``.  A plain result is ``output(tokens(result))`` if nothing was marked, its count unknown without
    ``tokens``; then the request is complete.

    Raises ConfigurationError for an argument, shape or role that does not exist.
    """
    opener = _Opener(tokens, arguments)
    if function is None:
        return functools.partial(_decorate, opener)
    return _decorate(opener, function)


def _decorate(opener: _Opener, function: Callable[..., Any]) -> Callable[..., Any]:
    if not callable(function):
        raise ConfigurationError(f"traced got {shown(function)}; it takes a function, or its arguments by keyword")
    if inspect.isasyncgenfunction(function):
        return _around_async_generator(opener, function)
    if inspect.isgeneratorfunction(function):
        return _around_generator(opener, function)
    wrap = _around_coroutine if inspect.iscoroutinefunction(function) else _around_function
    return functools.wraps(function)(wrap(opener, function))


def _around_function(opener: _Opener, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = opener.open()
        if not call.live:
            return function(*args, **kwargs)
        token = call.attach()
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            call.leave(error)
            raise
        finally:
            detach(token)
        return call.returned(result)

    return wrapper


def _around_coroutine(opener: _Opener, function: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = opener.open()
        if not call.live:
            return await function(*args, **kwargs)
        token = call.attach()
        try:
            result = await function(*args, **kwargs)
        except BaseException as error:
            call.leave(error)
            raise
        finally:
            detach_own(token)
        return call.returned(result)

    return wrapper


class _GeneratorFunction:
    """A traced generator function.

    The request arrives at the call and opens at the first pull, which no generator function could do by itself; yet
    frameworks ask ``inspect`` whether a function is one, and this looks like the one it wraps.
    """

    def __init__(self, function: Callable[..., Any], call: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._call = call
        behind: Any = function
        while isinstance(behind, functools.partial):
            behind = behind.func
        # What inspect wants of a function-like object.
        self.__code__ = behind.__code__
        self.__defaults__ = behind.__defaults__
        self.__kwdefaults__ = behind.__kwdefaults__
        self.__name__ = behind.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)


def _around_generator(opener: _Opener, function: Callable[..., Any]) -> Callable[..., Any]:
    def items(started: Anchor, parent: Context, args: Any, kwargs: Any) -> Generator[Any, Any, Any]:
        call = opener.open(started, parent)
        body = function(*args, **kwargs)
        return (yield from call.stream(body) if call.live else body)

    return _GeneratorFunction(function, lambda *args, **kwargs: items(anchor(), get_current(), args, kwargs))


def _around_async_generator(opener: _Opener, function: Callable[..., Any]) -> Callable[..., Any]:
    def start(started: Anchor, parent: Context, args: Any, kwargs: Any) -> Source:
        call = opener.open(started, parent)
        body = function(*args, **kwargs)
        return call.source(body) if call.live else Unmarked(call.handle, body)

    return _GeneratorFunction(
        function,
        lambda *args, **kwargs: async_stream(functools.partial(start, anchor(), get_current(), args, kwargs)),
    )
