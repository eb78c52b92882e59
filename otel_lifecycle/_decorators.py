"""``traced``: a whole function as a request.

The request opens at the call.  While the function runs, and during each step of what it yields or returns, the request
is current.  A boundary that nobody marks passes with an unknown time before the first output; a generator that is never
iterated opens nothing.  Where an unended request is current already, the function acts on that one and leaves its end
to its owner.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Mapping
from types import MethodType
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, overload

from opentelemetry.context import Context, get_current

from otel_lifecycle import _propagation, driver
from otel_lifecycle._core.lifecycle import get_shape
from otel_lifecycle._core.text import is_a, shown
from otel_lifecycle._keywords import plain_names
from otel_lifecycle._request.clock import NOW, Anchor, AtNs, anchor
from otel_lifecycle._request.conditions import check_names, check_role, given
from otel_lifecycle._request.handle import tracked_of
from otel_lifecycle._request.streams import Counter, StreamSource, async_stream
from otel_lifecycle.driver import Driver
from otel_lifecycle.errors import ConfigurationError, InvalidValue

Function = TypeVar("Function", bound=Callable[..., Any])

ReadCall: TypeAlias = Callable[..., "Mapping[str, Any] | None"]
"""From the arguments of a call to what its request is opened with."""

# What request() takes besides conditions, and a call can say. The shape is that of the function, not of a call.
OF_A_CALL: Final = frozenset({"parent", "arrived_at_ns", "previous"})


class _TracedCall(NamedTuple):
    """One call of a traced function: when and in which context it was made, and its arguments."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    started: Anchor | None = None
    context: Context | None = None


class _Opener:
    """What ``traced`` was given, checked once: how each call's request is opened."""

    __slots__ = ("_options", "_read_call", "_values", "tokens")

    def __init__(self, tokens: Counter | None, call: ReadCall | None, arguments: dict[str, Any]) -> None:
        self.tokens = tokens
        arguments = {**plain_names(arguments)}
        self._options = {
            "shape": get_shape(arguments.pop("shape", "default")).name,
            "arrived_at_ns": arguments.pop("arrived_at_ns", NOW),
            "previous": arguments.pop("previous", None),
            "tracer_provider": arguments.pop("tracer_provider", None),
        }
        if call is not None and not callable(call):
            raise ConfigurationError(f"call is {shown(call)}; it takes the arguments of a call and returns a mapping")
        self._read_call = call
        check_role(arguments.get("role", "whole"))
        check_names(arguments)
        self._values = given(arguments)

    def open(self, call: _TracedCall) -> Driver:
        """Open the request of a call; join the one that is current."""
        told, fault = self._told(call)
        options = {**self._options, **{name: told[name] for name in OF_A_CALL & told.keys()}}
        options["parent"] = call.context
        if "parent" in told:
            base = get_current() if call.context is None else call.context
            options["parent"] = _propagation.parent_context(told["parent"], base)
        values = {**self._values, **{name: value for name, value in told.items() if name not in OF_A_CALL}}
        drive = driver.begin(values, **options, started=call.started)
        tracked = tracked_of(drive.request)
        if fault is not None and tracked is not None:
            tracked.violate(InvalidValue(fault, state=tracked.state.name, event="call"))
        return drive

    def _told(self, call: _TracedCall) -> tuple[dict[str, Any], str | None]:
        """Return what the arguments of a call say of its request, and what was wrong with reading them."""
        if self._read_call is None:
            return {}, None
        try:
            told = self._read_call(*call.args, **call.kwargs)
            if told is None:
                return {}, None
            if not is_a(told, Mapping):
                return {}, f"call returned a {type(told).__name__}; it must be a mapping or None"
            # None is unset here too; a time of arrival is the exception, where None means unknown.
            items = {str.__str__(name): value for name, value in told.items() if is_a(name, str)}
        except Exception as error:  # noqa: BLE001  # the function must run, whatever is wrong with reading its arguments
            return {}, f"call raised {type(error).__name__}"
        return {name: value for name, value in items.items() if value is not None or name == "arrived_at_ns"}, None


@overload
def traced(function: Function, /) -> Function: ...
@overload
def traced(
    *,
    tokens: Counter | None = None,
    call: ReadCall | None = None,
    arrived_at_ns: AtNs = NOW,
    shape: str = "default",
    **arguments: Any,
) -> Callable[[Function], Function]: ...
def traced(
    function: Any = None, /, *, tokens: Counter | None = None, call: ReadCall | None = None, **arguments: Any
) -> Any:
    """Make a function a request, and each item it yields a token.  ``@traced`` and ``@traced(model=..., ...)``.

    Takes the arguments of :func:`otel_lifecycle.request`, and ``tokens``: from an item, or from a plain result, to the
    number of tokens in it (0, n, or None for unknown).  Right for a function, a coroutine, a generator, an async
    generator, and a function or coroutine whose result is an iterator, has ``__aiter__`` or is a response with a
    ``body_iterator``.  A plain result is ``output(tokens(result))`` if nothing was marked, its count unknown without
    ``tokens``; then the request is complete.

    ``call``: gets the arguments of each call and returns a mapping of what they say: conditions, ``parent`` (headers
    with the caller's trace), ``arrived_at_ns`` and ``previous``.  They take precedence over the arguments given here.
    What it raises, or returns instead of a mapping, is an ``invalid_value`` violation; the function runs all the same.

    Raises ConfigurationError for an argument, shape or role that does not exist.
    """
    # Checked here: a wrong argument fails when the module is imported, not when a request comes.
    opener = _Opener(tokens, call, arguments)
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
        drive = opener.open(_TracedCall(args, kwargs))
        return drive.returned(drive.run(function, *args, **kwargs), tokens=opener.tokens)

    return wrapper


def _around_coroutine(opener: _Opener, function: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        drive = opener.open(_TracedCall(args, kwargs))
        return drive.returned(await drive.wait(function(*args, **kwargs)), tokens=opener.tokens)

    return wrapper


class _GeneratorFunction:
    """A traced generator function.

    The request arrives at the call and opens at the first pull.  A real generator function cannot see its call, because
    its body begins with the first pull.  Frameworks ask ``inspect`` whether a function is a generator function, which
    asks ``__code__``; that is therefore the one of the function it wraps.  (A plain function would fail that question;
    ``functools.partial`` passes it and loses methods and pickling.)
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

    def __reduce__(self) -> str:
        """Pickle it as functions are: by its name, so that a pool of processes can be given it."""
        return str(vars(self)["__qualname__"])

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)


def _around_generator(opener: _Opener, function: Callable[..., Any]) -> Callable[..., Any]:
    def items(call: _TracedCall) -> Generator[Any, Any, Any]:
        drive = opener.open(call)
        return (yield from drive.stream(function(*call.args, **call.kwargs), tokens=opener.tokens))

    # The lambda runs at the call, and reads clock and context there; the body of `items` runs at the first pull.
    return _GeneratorFunction(
        function, lambda *args, **kwargs: items(_TracedCall(args, kwargs, anchor(), get_current()))
    )


def _around_async_generator(opener: _Opener, function: Callable[..., Any]) -> Callable[..., Any]:
    def start(call: _TracedCall) -> StreamSource:
        drive = opener.open(call)
        return drive.source(function(*call.args, **call.kwargs), tokens=opener.tokens)

    return _GeneratorFunction(
        function,
        lambda *args, **kwargs: async_stream(
            functools.partial(start, _TracedCall(args, kwargs, anchor(), get_current()))
        ),
    )
