"""Iterables whose items are tokens.

The request is current while an item is made and never while the consumer has it: the context is attached around each
single step and detached before the yield.  A span that stays attached across a ``yield`` leaks into the consumer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from opentelemetry.context import attach, detach, get_current

from otel_lifecycle._request.record import Record
from otel_lifecycle._request.scope import context_of
from otel_lifecycle.errors import InvalidValue

if TYPE_CHECKING:
    from otel_lifecycle._request.handle import Request

T = TypeVar("T")
Counter: TypeAlias = Callable[[Any], "int | None"]
"""From an item of a stream to the tokens in it: 0, 1, n, or None for unknown."""


def count_of(record: Record, tokens: Counter | None, item: Any) -> Any:
    """Return how many tokens an item has; a counter that raises makes it unknown, and a violation."""
    if tokens is None:
        return 1
    try:
        return tokens(item)
    except Exception as error:  # noqa: BLE001  # the stream goes on, whatever its counter does
        what = f"counting tokens raised {type(error).__name__}"
        record.violate(InvalidValue(what, state=record.state, event="token"))
        return None


def mark_item(handle: Request, tokens: Counter | None, item: Any) -> None:
    """Mark what one item holds."""
    count = 1 if tokens is None else count_of(handle._record, tokens, item)
    log = handle._ts
    if count == 1 and log is not None:
        log.append(perf_counter_ns())
    else:
        handle._record.item(count)


def begin(record: Record) -> None:
    """At the first pull the boundaries nobody marked pass: whoever streams has the model at work."""
    with record.lock:
        if record.status is None:
            record.pass_to("prefill")


def exhausted(record: Record) -> None:
    """A stream that ended by itself without a token was an empty answer, whole."""
    with record.lock:
        if record.status is None and record.passes:
            record.pass_to("prefill")
        if record.status is None and record.state == "prefill" and record.is_legal("output"):
            record.mark("output", count=0)


def sync_stream(
    handle: Request, iterable: Any, tokens: Counter | None, *, passes_at_once: bool = True
) -> Generator[Any, Any, Any]:
    """Yield what the iterable yields, each item marked."""
    iterator = iter(iterable)
    record = handle._record
    if passes_at_once:
        begin(record)
    context = context_of(record, get_current())
    try:
        while True:
            token = attach(context)
            try:
                item = next(iterator)
            except StopIteration as stop:
                exhausted(record)
                return stop.value
            finally:
                detach(token)
            log = handle._ts
            if tokens is None and log is not None:
                log.append(perf_counter_ns())
            else:
                mark_item(handle, tokens, item)
            yield item
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            close()


async def async_stream(
    handle: Request, iterable: Any, tokens: Counter | None, *, passes_at_once: bool = True
) -> AsyncGenerator[Any, None]:
    """Yield what the async iterable yields, each item marked."""
    iterator = aiter(iterable)
    record = handle._record
    if passes_at_once:
        begin(record)
    context = context_of(record, get_current())
    step = iterator.__anext__
    try:
        while True:
            token = attach(context)
            try:
                item = await step()
            except StopAsyncIteration:
                exhausted(record)
                return
            finally:
                detach(token)
            log = handle._ts
            if tokens is None and log is not None:
                log.append(perf_counter_ns())
            else:
                mark_item(handle, tokens, item)
            yield item
    finally:
        close = getattr(iterator, "aclose", None)
        if close is not None:
            await close()
