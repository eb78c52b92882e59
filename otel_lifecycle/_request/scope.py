"""Which request is current, and the blocks in which it is.

A request is current only inside ``stage()``, during each step of ``stream`` and ``traced``, and in the middleware.  The
context holds it weakly: a context that a background task copied keeps no request alive.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from opentelemetry.context import Context, attach, create_key, detach, get_current, get_value, set_value
from opentelemetry.trace import set_span_in_context

from otel_lifecycle._request.endings import Ending
from otel_lifecycle._request.finish import end
from otel_lifecycle._request.record import Record
from otel_lifecycle.errors import ConfigurationError, EventAfterTerminal, IllegalTransition

if TYPE_CHECKING:
    from otel_lifecycle._request.handle import Request

Function = TypeVar("Function", bound=Callable[..., Any])

_REQUEST: Final = create_key("otel_lifecycle-request")
STAGES: Final = ("queue", "preprocessing", "prefill")


def context_of(record: Record, base: Context | None = None) -> Context:
    """Return a context in which the request, and its span, are current."""
    return set_value(_REQUEST, record.reference, set_span_in_context(record.span, base))


def without_request(here: Context, outside: Context) -> Context:
    """Return a context with the request, or none, that was current in the one outside."""
    return set_value(_REQUEST, outside.get(_REQUEST), here)


def detach_own(token: object) -> None:
    """Detach what was attached around one await of ours; where the token is of another context, do nothing.

    A coroutine that is thrown away is closed wherever the collector, or a loop that ends, happens to be.  What was
    attached has gone with its context then, and ``detach`` would log that as an error.
    """
    if not isinstance(token, Token):
        detach(token)  # type: ignore[arg-type]  # of another runtime context than OpenTelemetry's own
        return
    try:
        token.var.reset(token)
    except ValueError:
        return


def in_context() -> Request | None:
    """Return the current request if there is one that has not ended."""
    reference = get_value(_REQUEST)
    handle = reference() if callable(reference) else None
    return None if handle is None or handle._record.status is not None else handle


def check_stage(name: object) -> str:
    """Return the stage's name; ConfigurationError unless a block can be spent in it."""
    if name in STAGES:
        return str(name)
    raise ConfigurationError(f"no stage {name!r:.80} to enter; there are {', '.join(STAGES)}")


class StageBlock:
    """A block spent in one stage: its normal exit emits the event that leaves the stage, an abnormal one nothing."""

    __slots__ = ("_active", "_name", "_record", "_token")

    def __init__(self, record: Record, name: str) -> None:
        self._record = record
        self._name = name
        self._active = False
        self._token: Any = None

    def __enter__(self) -> None:
        self._active = enter_stage(self._record, self._name)
        self._token = attach(context_of(self._record, get_current()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is GeneratorExit:
            detach_own(self._token)
        else:
            detach(self._token)
        if error is None and self._active:
            leave_stage(self._record, self._name)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)


class _NoBlock(StageBlock):
    """A block of no request."""

    __slots__ = ()

    def __init__(self) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


NO_BLOCK: Final = _NoBlock()


def enter_stage(record: Record, name: str) -> bool:
    """Pass the earlier stages that nobody marked; from a later one count a violation and return False."""
    with record.lock:
        shape = record.timeline.shape
        stage = shape.stage(name)
        if record.status is not None:
            if not record.silenced:
                record.violate(
                    EventAfterTerminal(f"stage {name!r} after the end", state=record.status, event=stage.leave)
                )
            return False
        order = [one.state for one in shape.stages]
        if order.index(record.in_stage) > order.index(stage.state):
            record.violate(
                IllegalTransition(
                    f"stage {name!r} while {record.state}",
                    state=record.state,
                    event=stage.leave,
                    allowed=shape.table[record.state],
                )
            )
            return False
        record.pass_to(stage.state)
        return True


def leave_stage(record: Record, name: str) -> None:
    """Emit the event that leaves the stage, unless the body has."""
    stage = record.timeline.shape.stage(name)
    if record.status is not None or record.in_stage != stage.state or stage.leave is None:
        return
    if stage.leave == "complete":
        end(record, Ending("complete"))
    else:
        record.mark(stage.leave)


_entered: ContextVar[tuple[tuple[object, Any], ...]] = ContextVar("otel_lifecycle-stages", default=())
"""The ``lifecycle.stage()`` blocks that are entered in this task, the innermost last: one such object serves many."""


class CurrentStage:
    """``lifecycle.stage(name)``: a block or a decorator that acts on whichever request is current."""

    __slots__ = ("_current", "_name")

    def __init__(self, name: str, current: Callable[[], Request]) -> None:
        self._name = check_stage(name)
        self._current = current

    def __enter__(self) -> None:
        block = self._current().stage(self._name)
        block.__enter__()
        _entered.set((*_entered.get(), (self, block)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        entered = _entered.get()
        # Left in another task than it was entered in, it is not there to be left.
        if entered and entered[-1][0] is self:
            _entered.set(entered[:-1])
            entered[-1][1].__exit__(kind, error, traceback)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)

    def __call__(self, function: Function) -> Function:
        """Spend every call of the function in the stage.  ConfigurationError for a generator: a block cannot yield."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigurationError(f"{function.__qualname__} is a generator; a stage is not left and taken up again")
        wrapper = self._around_coroutine if inspect.iscoroutinefunction(function) else self._around_function
        return functools.wraps(function)(wrapper(function))  # type: ignore[return-value]  # same signature

    def _around_function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self._current().stage(self._name):
                return function(*args, **kwargs)

        return wrapper

    def _around_coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self._current().stage(self._name):
                return await function(*args, **kwargs)

        return wrapper
