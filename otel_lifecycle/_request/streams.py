"""Iterables whose items are tokens.

How it works.  The request is current while an item is made and never while the consumer has it: its context is attached
around each single step and detached before the yield, because a span that stays attached across a ``yield`` leaks into
the consumer.  What the iterable itself leaves attached at the end of a step, such as a span of the server's own, is
kept and attached again for the next one, so that a generator finds the context it left.

What is sent or thrown into a stream goes into the iterable it wraps, as if nothing stood between.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from operator import index
from time import perf_counter_ns
from typing import Any, Protocol, TypeAlias

from opentelemetry.context import Context, attach, get_current

from otel_lifecycle._request.context import context_of, detach_own
from otel_lifecycle._request.context_switch import context_switch
from otel_lifecycle._request.token_path import TokenPath
from otel_lifecycle._request.tracked import TrackedRequest
from otel_lifecycle.errors import InvalidValue

Counter: TypeAlias = Callable[[Any], "float | None"]
"""From an item of a stream to the tokens in it: 0, 1, n, or None for unknown; with a unit, how much it is."""

Leave: TypeAlias = Callable[["BaseException | None"], None]


class StreamSource(Protocol):
    """An iterable and what its items mean.  ``context``: what is current while the first item is made.

    ``path``: where the loop appends the time of an item by itself, because each item is one token and nobody else marks
    it; None where every item goes through :meth:`took`.
    """

    iterable: Any
    context: Context
    path: TokenPath | None

    def marks(self) -> int:
        """Return how many marks of tokens there are, to see whether the making of an item adds its own."""

    def took(self, item: Any, marks: int) -> None:
        """Mark what one item holds; ``marks``: how many there were before it was made."""

    def exhausted(self) -> None:
        """Note that the iterable ended by itself."""

    def left(self, error: BaseException | None) -> None:
        """Note what ended the iteration."""


class TokenSource:
    """An iterable whose items are tokens of a request.

    ``leave`` is told what ended the iteration; without it the request's owner ends it.  ``read``: items mark nothing by
    themselves and are handed to it.  With ``traced`` the body of the iterable may mark tokens by itself: an item in
    whose making tokens were marked is not marked again.
    """

    __slots__ = ("_handle", "_leave", "_read", "_tokens", "_traced", "_tracked", "context", "iterable", "path")

    def __init__(
        self,
        handle: TokenPath,
        tracked: TrackedRequest,
        iterable: Any,
        tokens: Counter | None = None,
        *,
        leave: Leave | None = None,
        read: Callable[[Any], None] | None = None,
        traced: bool = False,
    ) -> None:
        # The stream keeps the handle alive: a request whose tokens are still pulled is not abandoned.
        self._handle = handle
        self._tracked = tracked
        self._tokens = tokens
        self._leave = leave
        self._read = read
        self._traced = traced
        self.iterable = iterable
        self.path = handle if tokens is None and read is None and not traced else None
        if not traced and read is None:
            tracked.begin_stream()
        self.context = context_of(tracked, get_current())

    def marks(self) -> int:
        """Return how many marks of tokens there are."""
        return self._tracked.state.timeline.token_marks() if self._traced else 0

    def took(self, item: Any, marks: int) -> None:
        """Mark what one item holds, or hand it to the reader."""
        if self._read is not None:
            self._read(item)
            return
        if self._traced and self._tracked.state.timeline.token_marks() != marks:
            return
        count = 1 if self._tokens is None else count_of(self._tracked, self._tokens, item)
        log = self._handle._ts
        if count == 1 and log is not None:
            log.append(perf_counter_ns())
        else:
            self._tracked.item(count)

    def exhausted(self) -> None:
        """A stream that ended by itself is all of the answer."""
        if self._read is None:
            self._tracked.end_stream()

    def left(self, error: BaseException | None) -> None:
        """Note the engine's exception, and tell the owner what ended the iteration."""
        if error is not None:
            self._tracked.passed(error)
        if self._leave is not None:
            self._leave(error)


class UnmarkedSource:
    """An iterable without a request: there is nothing to mark."""

    __slots__ = ("context", "iterable", "path")

    def __init__(self, iterable: Any) -> None:
        self.iterable = iterable
        self.context = get_current()
        self.path: TokenPath | None = None

    def marks(self) -> int:
        """Return 0."""
        return 0

    def took(self, item: Any, marks: int) -> None:
        """Mark nothing."""

    def exhausted(self) -> None:
        """Mark nothing."""

    def left(self, error: BaseException | None) -> None:
        """Tell nobody."""


def count_of(tracked: TrackedRequest, tokens: Counter, item: Any) -> Any:
    """Return how many tokens an item has; a counter that raises makes it unknown, and a violation."""
    try:
        count = tokens(item)
        if tracked.state.checker.amounts is not None:
            # A part of a second is not an integer; what is not a number is judged where it is marked.
            return count
        # True, and the integers of numpy, are counts too; what is not an integer is judged where it is marked.
        return None if count is None else index(count)  # type: ignore[arg-type]  # a float raises, as it should
    except Exception as error:  # noqa: BLE001  # the stream goes on, whatever its counter does
        what = f"counting tokens raised {type(error).__name__}"
        tracked.violate(InvalidValue(what, state=tracked.state.name, event="token"))
        return None


def eager_stream(start: Callable[[], StreamSource]) -> Generator[Any, Any, Any]:
    """Return a stream that has started: closing a generator that has not started runs none of its code."""

    def items() -> Generator[Any, Any, Any]:
        source = start()
        try:
            yield
        except BaseException as error:
            _close(source.iterable, source.context)
            source.left(error)
            raise
        return (yield from sync_stream(lambda: source))

    begun = items()
    # Run to the bare `yield`, so that closing or dropping it runs the handler.
    next(begun)
    return begun


def sync_stream(start: Callable[[], StreamSource]) -> Generator[Any, Any, Any]:
    """Yield what the iterable yields, each item marked.  ``start`` is called at the first pull."""
    source = start()
    path, inner = source.path, source.context
    enter, here, leave = context_switch()
    iterator = iter(source.iterable)
    step: Callable[[], Any] | None = None  # the next item, by the builtin: half of what the method of that name costs
    try:
        while True:
            marks = 0 if path is not None else source.marks()
            token = enter(inner)
            try:
                item = next(iterator) if step is None else step()
                if path is not None and (log := path._ts) is not None:
                    # Not through `took`: this line runs for every token.
                    log.append(perf_counter_ns())
                else:
                    source.took(item, marks)
            except StopIteration as stop:
                source.exhausted()
                result = stop.value
                break
            finally:
                # Read while it is still current: this is what the step itself left attached.
                inner = here()
                leave(token)
            try:
                sent = yield item
                step = None if sent is None else _into(iterator, "send", sent)
            # The consumer stopped: the handler below closes the iterable.
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001  # it is thrown on, into the iterable
                step = _into(iterator, "throw", error)
    except BaseException as error:
        _close(iterator, inner)
        source.left(error)
        raise
    source.left(None)
    return result


async def async_stream(start: Callable[[], StreamSource]) -> AsyncGenerator[Any, Any]:
    """Yield what the async iterable yields, each item marked.  ``start`` is called at the first pull."""
    source = start()
    path, inner, iterator = source.path, source.context, aiter(source.iterable)
    enter, here, leave = context_switch()
    step: Callable[[], Any] | None = None
    try:
        while True:
            marks = 0 if path is not None else source.marks()
            token = enter(inner)
            try:
                item = await (anext(iterator) if step is None else step())
                if path is not None and (log := path._ts) is not None:
                    log.append(perf_counter_ns())
                else:
                    source.took(item, marks)
            except StopAsyncIteration:
                source.exhausted()
                break
            finally:
                inner = here()
                try:  # noqa: SIM105  # suppress() costs two calls a token
                    leave(token)
                except ValueError:  # Discarded in the middle of the step, and closed in another context.
                    pass
            try:
                sent = yield item
                step = None if sent is None else _into(iterator, "asend", sent)
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001  # it is thrown on, into the iterable
                step = _into(iterator, "athrow", error)
    except BaseException as error:
        # The request ends before anything is awaited: the task that closes the stream may never resume.
        source.left(error)
        await _close_async(iterator, inner)
        raise
    source.left(None)


async def _close_async(iterator: Any, inner: Context) -> None:
    close = getattr(iterator, "aclose", None)
    # A generator that is discarded in the middle of a step stays "running" until it is collected.
    if close is None or getattr(iterator, "ag_running", False):
        return
    token = attach(inner)
    try:
        await close()
    finally:
        detach_own(token)


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


def _close(iterator: Any, inner: Context) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        token = attach(inner)
        try:
            close()
        finally:
            detach_own(token)
