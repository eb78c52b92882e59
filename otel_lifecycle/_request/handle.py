"""The handle of one request, and its twin that does nothing.

    with lifecycle.request(model="smollm2") as request:
        with request.stage("queue"):
            ...

A handle is a context manager: leaving the block ends the request by what left it.  It attaches nothing to the context.
Every method may be called from any task or thread, at any time, with anything: what is wrong is counted, not raised.
``at_ns``: left out, now; an int, epoch nanoseconds; None, unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace

from otel_lifecycle import _propagation
from otel_lifecycle._request import conditions, endings, finish, scope, streams
from otel_lifecycle._request.clock import NOW, AtNs
from otel_lifecycle._request.record import Record, is_nothing
from otel_lifecycle._request.remote import record_events
from otel_lifecycle.errors import EventAfterTerminal

if TYPE_CHECKING:
    from typing_extensions import Self

_ONE: Final = 1
_FIRST: Final = 0


class Request:
    """One request on its way through the lifecycle; made by :func:`otel_lifecycle.request`."""

    __slots__ = ("__weakref__", "_record", "_ts")

    def __init__(self, record: Record) -> None:
        self._record = record
        # The list that single tokens are appended to; None whenever the request is not in decode.
        self._ts: list[Any] | None = None

    # ---------------------------------------------------------------------------------------- boundaries

    def admit(self, *, at_ns: AtNs = NOW) -> None:
        """The scheduler granted resources: ends the queue."""
        self._record.mark("admit", at_ns)

    def input_ready(self, *, at_ns: AtNs = NOW) -> None:
        """The input may enter the model: ends preprocessing."""
        self._record.mark("input_ready", at_ns)

    def first_token(self, n: int | None = 1, choice: int = 0, *, at_ns: AtNs = NOW) -> None:
        """The first output token, or a first chunk of ``n`` (None: unknown): ends prefill."""
        if not is_nothing(n):
            self._record.mark("first_token", at_ns, n, choice)

    def token(self, n: int | None = 1, choice: int = 0, at_ns: AtNs = NOW) -> None:
        """One more output token, or ``n`` at once (None: unknown; 0: nothing).  In prefill it is the first token.

        ``at_ns`` is not keyword-only here alone: the default of one that is costs a fifth of the whole call.
        """
        try:
            # By identity, which costs a quarter less than by value: an equal number of another kind goes the long way.
            if n is _ONE and choice is _FIRST and at_ns is NOW:
                self._ts.append(perf_counter_ns())  # type: ignore[union-attr]  # None outside decode: the miss is caught
                return
        except AttributeError:  # the miss
            pass
        self._record.token(n, choice, at_ns)

    def output(self, tokens: int | None = None, *, at_ns: AtNs = NOW) -> None:
        """A whole answer appeared at once; its first-token time stays unknown.  ``tokens``: None if unknown."""
        self._record.mark("output", at_ns, tokens)

    def preempt(self, *, at_ns: AtNs = NOW) -> None:
        """The engine took the request's resources back."""
        self._record.mark("preempt", at_ns)

    def resume(self, *, at_ns: AtNs = NOW) -> None:
        """The engine took the request up again, in the state it was interrupted in."""
        self._record.mark("resume", at_ns)

    # ---------------------------------------------------------------------------------------- ends

    def complete(self, *, at_ns: AtNs = NOW) -> None:
        """The request ended normally; legal from decode (in pooling also from prefill)."""
        finish.end(self._record, endings.Ending("complete"), at_ns)

    def cancel(self, reason: str | None = None, *, at_ns: AtNs = NOW) -> None:
        """The request was given up.  ``reason``: one of the closed list, else ``_OTHER``."""
        finish.end(self._record, endings.cancellation(reason), at_ns)

    def timeout(self, reason: str | None = None, *, at_ns: AtNs = NOW) -> None:
        """The request ran out of time.  ``reason``: one of the closed list, else ``_OTHER``."""
        finish.end(self._record, endings.timeout(reason), at_ns)

    def fail(self, error: BaseException | str | None = None, *, at_ns: AtNs = NOW) -> None:
        """The request failed by an exception, a reason of the closed list, or an error type (an identifier)."""
        finish.end(self._record, endings.failure(error), at_ns)

    def __enter__(self) -> Self:
        record = self._record
        if record.status is not None and not record.silenced:
            record.violate(
                EventAfterTerminal("a handle that has ended was entered", state=record.status, event="arrive")
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        leave(self._record, error)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        leave(self._record, error)

    # ---------------------------------------------------------------------------------------- conditions

    def usage(
        self,
        *,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        cached_tokens: int | None = None,
    ) -> None:
        """The token counts the engine gives; ``output_tokens`` completes a count that marks left unknown."""
        given = {"input_tokens": input_tokens, "output_tokens": output_tokens, "cached_tokens": cached_tokens}
        conditions.apply(self._record, conditions.given(given))

    def set(self, **values: Any) -> None:
        """Set conditions that were not known at arrival; the names are those of :func:`otel_lifecycle.request`."""
        conditions.apply(self._record, conditions.given(values))

    def response(
        self,
        *,
        id: str | None = None,  # the contract's name
        model: str | None = None,
        finish_reasons: Iterable[str] | None = None,
    ) -> None:
        """What the response says of itself: its id, the model that answered, why each choice ended."""
        conditions.apply_response(self._record, id, model, finish_reasons)

    # ---------------------------------------------------------------------------------------- blocks

    def stage(self, name: str) -> scope.StageBlock:
        """A block spent in ``queue``, ``preprocessing`` or ``prefill``: leaving it emits the event that leaves it.

        An exception that leaves it emits nothing.  Do not yield inside.  ConfigurationError for any other name.
        """
        return scope.StageBlock(self._record, scope.check_stage(name))

    def stream(self, iterable: Any, tokens: streams.Counter | None = None) -> Any:
        """Wrap a sync or async iterable: each item is one token, or ``tokens(item)`` tokens (0, n, None: unknown)."""
        wrap = streams.async_stream if hasattr(iterable, "__aiter__") else streams.sync_stream
        return wrap(lambda: streams.Source(self, iterable, tokens))

    # ---------------------------------------------------------------------------------------- notes

    def client_disconnected(self, *, at_ns: AtNs = NOW) -> None:
        """The client left.  A note: what the server does is marked by its own events."""
        self._record.note("client_disconnected", at_ns)

    def delivered(self, *, at_ns: AtNs = NOW) -> None:
        """The first byte was sent to the client.  A note; only the first counts."""
        if self._record.delivered is None:
            self._record.note("delivered", at_ns)

    def prefill_chunk(self, *, at_ns: AtNs = NOW) -> None:
        """A part of a chunked prefill is done.  A note: prefill goes on until the first token."""
        self._record.note("prefill_chunk", at_ns)

    # ---------------------------------------------------------------------------------------- elsewhere

    def carrier(self) -> dict[str, str]:
        """The trace context of this request as headers, for an engine in another process."""
        record = self._record
        return _propagation.inject(record.span.get_span_context(), record.parent_context)

    def record(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Take over what an engine in another process marked: ``[{'event', 'timestamp', ...}]`` in epoch nanoseconds.

        ``count`` and ``choice`` as in :func:`otel_lifecycle.replay_request_events`.  Its clock is judged by itself.
        """
        record_events(self._record, events)

    @property
    def report(self) -> dict[str, Any] | None:
        """The report of the ended request, times in epoch nanoseconds; None while it is open."""
        report = finish.report_of(self._record)
        return None if report is None else dict(report)

    def __copy__(self) -> Self:
        """Return the handle itself: a copy of a struct that holds it means the same request."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> str:
        raise TypeError(
            "a request handle does not leave its process; send request.carrier(), and record() what comes back"
        )

    def __repr__(self) -> str:
        record = self._record
        span = record.span.get_span_context()
        return f"<Request {record.labels.operation} {record.status or record.state} trace={span.trace_id:032x}>"


def leave(record: Record, error: BaseException | None) -> None:
    """End a request whose block is left, unless it has ended."""
    if record.status is not None:
        return
    if error is not None:
        past = endings.past(record.elapsed(), record.deadline)
        # Strict marks raise at the call; the exception that leaves the block is the server's own and goes on unchanged.
        record.checker.strict = False
        finish.end(record, endings.of_exception(error, past_deadline=past))
    elif record.is_legal("complete"):
        finish.end(record, endings.Ending("complete"))
    else:
        finish.end_incomplete(record)


class _Sink(list[Any]):
    """A list that keeps nothing."""

    __slots__ = ()

    def append(self, item: Any, /) -> None:
        """Drop the item."""


class NoRequest(Request):
    """What ``current()`` gives outside a request, and ``request()`` without an SDK: every call is a no-op."""

    __slots__ = ()

    def __init__(self) -> None:
        # step() and stream() append here; there is no record.
        self._ts = _Sink()

    def admit(self, *, at_ns: AtNs = NOW) -> None: ...

    def input_ready(self, *, at_ns: AtNs = NOW) -> None: ...

    def first_token(self, n: int | None = 1, choice: int = 0, *, at_ns: AtNs = NOW) -> None: ...

    def token(self, n: int | None = 1, choice: int = 0, at_ns: AtNs = NOW) -> None: ...

    def output(self, tokens: int | None = None, *, at_ns: AtNs = NOW) -> None: ...

    def preempt(self, *, at_ns: AtNs = NOW) -> None: ...

    def resume(self, *, at_ns: AtNs = NOW) -> None: ...

    def complete(self, *, at_ns: AtNs = NOW) -> None: ...

    def cancel(self, reason: str | None = None, *, at_ns: AtNs = NOW) -> None: ...

    def timeout(self, reason: str | None = None, *, at_ns: AtNs = NOW) -> None: ...

    def fail(self, error: BaseException | str | None = None, *, at_ns: AtNs = NOW) -> None: ...

    def usage(
        self,
        *,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        cached_tokens: int | None = None,
    ) -> None: ...

    def set(self, **values: Any) -> None: ...

    def response(
        self,
        *,
        id: str | None = None,  # the contract's name
        model: str | None = None,
        finish_reasons: Iterable[str] | None = None,
    ) -> None: ...

    def client_disconnected(self, *, at_ns: AtNs = NOW) -> None: ...

    def delivered(self, *, at_ns: AtNs = NOW) -> None: ...

    def prefill_chunk(self, *, at_ns: AtNs = NOW) -> None: ...

    def record(self, events: Iterable[Mapping[str, Any]]) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def stage(self, name: str) -> scope.StageBlock:
        """Check the name, as the live handle does, and do nothing."""
        scope.check_stage(name)
        return scope.NO_BLOCK

    def stream(self, iterable: Any, tokens: streams.Counter | None = None) -> Any:
        """Return an iterator over the iterable, as the live handle does, and mark nothing."""
        return aiter(iterable) if hasattr(iterable, "__aiter__") else iter(iterable)

    def carrier(self) -> dict[str, str]:
        """The trace context that is current, as headers."""
        return _propagation.inject(trace.get_current_span().get_span_context())

    @property
    def report(self) -> dict[str, Any] | None:
        """None: there is nothing to report."""
        return None

    def __repr__(self) -> str:
        return "<Request none>"


NO_REQUEST = NoRequest()
"""The one shared no-op handle."""
