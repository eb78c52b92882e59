"""Iterables whose items are tokens.

The request is current while an item is made and never while the consumer has it: the context is attached around each
single step and detached before the yield.  A span that stays attached across a ``yield`` leaks into the consumer.

What is sent or thrown into a stream goes into the iterable it wraps, as if nothing stood between.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from operator import index
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeAlias

from opentelemetry.context import attach, detach, get_current

from otel_lifecycle._request.record import Record
from otel_lifecycle._request.scope import context_of, detach_own
from otel_lifecycle.errors import InvalidValue

if TYPE_CHECKING:
    from otel_lifecycle._request.handle import Request

Counter: TypeAlias = Callable[[Any], "int | None"]
"""From an item of a stream to the tokens in it: 0, 1, n, or None for unknown."""

Leave: TypeAlias = Callable[["BaseException | None"], None]


class Source:
    """A request and the iterable that its tokens come from.

    ``leave`` is told what ended the iteration; without it the request's owner ends it.  With ``traced`` the body of the
    iterable may mark tokens by itself: an item in whose making tokens were marked is not marked again.
    """

    __slots__ = ("context", "handle", "iterable", "leave", "record", "tokens", "traced")

    def __init__(
        self,
        handle: Request,
        iterable: Any,
        tokens: Counter | None,
        *,
        leave: Leave | None = None,
        traced: bool = False,
    ) -> None:
        self.handle = handle
        self.record = handle._record
        self.iterable = iterable
        self.tokens = tokens
        self.leave = leave
        self.traced = traced
        if not traced:
            self._begin()
        self.context = context_of(self.record, get_current())

    @property
    def plain(self) -> bool:
        """Whether each item is one token and nobody else marks it: the loop appends its time by itself."""
        return self.tokens is None and not self.traced

    def _begin(self) -> None:
        """At the first pull the boundaries nobody marked pass: whoever streams has the model at work."""
        with self.record.lock:
            if self.record.status is None:
                self.record.pass_to("prefill")

    def marks(self) -> int:
        """Return how many marks of tokens there are, to see whether a step of a traced body adds its own."""
        return self.record.timeline.token_marks() if self.traced else 0

    def took(self, item: Any, marks: int) -> None:
        """Mark what one item holds; ``marks``: how many there were before it was made."""
        if self.traced and self.record.timeline.token_marks() != marks:
            return
        count = 1 if self.tokens is None else count_of(self.record, self.tokens, item)
        log = self.handle._ts
        if count == 1 and log is not None:
            log.append(perf_counter_ns())
        else:
            self.record.item(count)

    def exhausted(self) -> None:
        """A stream that ended by itself is all of the answer; without a token it was an empty one."""
        record = self.record
        record.exhausted = True
        with record.lock:
            if record.status is None and record.passes:
                record.pass_to("prefill")
            if record.status is None and record.state == "prefill" and record.is_legal("output"):
                record.mark("output", count=0)

    def left(self, error: BaseException | None) -> None:
        """Tell the owner what ended the iteration."""
        if self.leave is not None:
            self.leave(error)


class Unmarked(Source):
    """An iterable of nobody's request: there is nothing to mark."""

    __slots__ = ()

    def __init__(self, handle: Request, iterable: Any) -> None:
        self.handle = handle
        self.iterable = iterable
        self.tokens = None
        self.traced = True
        self.context = get_current()

    def marks(self) -> int:
        """Return 0."""
        return 0

    def took(self, item: Any, marks: int) -> None:
        """Mark nothing."""

    def exhausted(self) -> None:
        """Mark nothing."""

    def left(self, error: BaseException | None) -> None:
        """Tell nobody."""


def count_of(record: Record, tokens: Counter, item: Any) -> Any:
    """Return how many tokens an item has; a counter that raises makes it unknown, and a violation."""
    try:
        count = tokens(item)
        # True, and the integers of numpy, are counts too; what is no integer is judged where it is marked.
        return None if count is None else index(count)
    except Exception as error:  # noqa: BLE001  # the stream goes on, whatever its counter does
        what = f"counting tokens raised {type(error).__name__}"
        record.violate(InvalidValue(what, state=record.state, event="token"))
        return None


def sync_stream(start: Callable[[], Source]) -> Generator[Any, Any, Any]:
    """Yield what the iterable yields, each item marked.  ``start`` is called at the first pull."""
    source = start()
    handle, context, plain = source.handle, source.context, source.plain
    iterator = iter(source.iterable)
    step: Callable[[], Any] = iterator.__next__
    try:
        while True:
            marks = 0 if plain else source.marks()
            token = attach(context)
            try:
                item = step()
                log = handle._ts
                if plain and log is not None:
                    log.append(perf_counter_ns())
                else:
                    source.took(item, marks)
            except StopIteration as stop:
                source.exhausted()
                result = stop.value
                break
            finally:
                detach(token)
            try:
                sent = yield item
                step = iterator.__next__ if sent is None else _into(iterator, "send", sent)
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001  # it is thrown on, into the iterable
                step = _into(iterator, "throw", error)
    except BaseException as error:
        _close(iterator)
        source.left(error)
        raise
    source.left(None)
    return result


async def async_stream(start: Callable[[], Source]) -> AsyncGenerator[Any, Any]:
    """Yield what the async iterable yields, each item marked.  ``start`` is called at the first pull."""
    source = start()
    handle, context, plain = source.handle, source.context, source.plain
    iterator = aiter(source.iterable)
    step: Callable[[], Any] = iterator.__anext__
    try:
        while True:
            marks = 0 if plain else source.marks()
            token = attach(context)
            try:
                item = await step()
                log = handle._ts
                if plain and log is not None:
                    log.append(perf_counter_ns())
                else:
                    source.took(item, marks)
            except StopAsyncIteration:
                source.exhausted()
                break
            finally:
                detach_own(token)
            try:
                sent = yield item
                step = iterator.__anext__ if sent is None else _into(iterator, "asend", sent)
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001  # it is thrown on, into the iterable
                step = _into(iterator, "athrow", error)
    except BaseException as error:
        # The request ends before anything is awaited: whoever tears the stream down may never come back.
        source.left(error)
        close = getattr(iterator, "aclose", None)
        # Thrown away in the middle of a step, a generator stays "running" until it is thrown away itself.
        if close is not None and not getattr(iterator, "ag_running", False):
            await close()
        raise
    source.left(None)


def _into(iterator: Any, how: str, what: Any) -> Callable[[], Any]:
    """Return the step that sends or throws something into the iterable; raised here where it cannot take it."""
    step = getattr(iterator, how, None)
    if step is not None:
        return lambda: step(what)

    def refuse() -> Any:
        if isinstance(what, BaseException):
            raise what
        raise AttributeError(f"{type(iterator).__name__!r} object has no attribute {how!r}")

    return refuse


def _close(iterator: Any) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        close()
