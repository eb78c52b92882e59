"""The blocks that a request spends in a stage.

A :class:`StageBlock` belongs to one request and is entered once.  A :class:`CurrentStage`, what ``lifecycle.stage()``
gives, finds its request when it is entered, so one object serves many tasks; which block it stands for in a task is
kept in a context variable of that task.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, TypeVar

from opentelemetry.context import attach, detach, get_current

from otel_lifecycle._core.text import is_a, shown
from otel_lifecycle._request.blocks import Block
from otel_lifecycle._request.context import context_of, detach_own
from otel_lifecycle._request.tracked import TrackedRequest
from otel_lifecycle.errors import ConfigurationError, InvalidValue

Function = TypeVar("Function", bound=Callable[..., Any])

# Decode has no block: its first token begins it, and the end of the request ends it.
STAGES: Final = ("queue", "preprocessing", "prefill")


def read_stage(name: object) -> str:
    """Return the stage's name; InvalidValue unless a block can be spent in it."""
    # As plain text: the name may be of a class with an `__eq__` of its own.
    text = str.__str__(name) if is_a(name, str) else ""
    if text in STAGES:
        return text
    raise InvalidValue(f"no stage {shown(name)} to enter; there are {', '.join(STAGES)}", event="stage")


class StageBlock(Block):
    """A block spent in one stage: its normal exit emits the event that leaves the stage, an abnormal one nothing."""

    __slots__ = ("_active", "_stage", "_token", "_tracked")

    def __init__(self, tracked: TrackedRequest, name: str) -> None:
        self._tracked = tracked
        self._stage = tracked.shape.stage(name)
        self._active = False
        self._token: Any = None

    def __enter__(self) -> None:
        self._active = self._tracked.enter_stage(self._stage)
        span = self._tracked.stage_span(self._stage) if self._active else None
        self._token = attach(context_of(self._tracked, get_current(), span))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A discarded generator is closed in whatever context the collector runs. Any other exit is in the context
        # that was entered, and a mismatch there is worth OpenTelemetry's error log.
        if kind is GeneratorExit:
            detach_own(self._token)
        else:
            detach(self._token)
        if error is not None:
            self._tracked.passed(error)
        elif self._active:
            self._tracked.leave_stage(self._stage)
        if self._active:
            self._tracked.left_stage(self._stage)


class NoBlock(StageBlock):
    """A block of no request."""

    __slots__ = ()

    def __init__(self) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


NO_BLOCK: Final = NoBlock()


def stage_block(tracked: TrackedRequest, name: object) -> StageBlock:
    """Return the block of a stage; of a name that is none, a violation is counted and the block does nothing.

    A server that names a stage wrongly goes on: the body of the block runs all the same.
    """
    try:
        return StageBlock(tracked, read_stage(name))
    except InvalidValue as error:
        tracked.violate(error)
        return NO_BLOCK


_entered: ContextVar[tuple[tuple[object, Any], ...]] = ContextVar("otel_lifecycle-stages", default=())
"""The ``lifecycle.stage()`` blocks that are entered in this task, the innermost last."""


class CurrentStage(Block):
    """``lifecycle.stage(name)``: a block or a decorator that acts on whichever request is current."""

    __slots__ = ("_name", "_open")

    def __init__(self, name: str, open_block: Callable[[str], StageBlock]) -> None:
        # Not checked here: a wrong name is a violation of the request that enters the block.
        self._name = name
        self._open = open_block

    def __enter__(self) -> None:
        block = self._open(self._name)
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

    def __call__(self, function: Function) -> Function:
        """Spend every call of the function in the stage.  ConfigurationError for a generator: a block cannot yield."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigurationError(f"{function.__qualname__} is a generator; a stage is not left and taken up again")
        wrapper = self._around_coroutine if inspect.iscoroutinefunction(function) else self._around_function
        return functools.wraps(function)(wrapper(function))  # type: ignore[return-value]  # same signature

    def _around_function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self._open(self._name):
                return function(*args, **kwargs)

        return wrapper

    def _around_coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self._open(self._name):
                return await function(*args, **kwargs)

        return wrapper
