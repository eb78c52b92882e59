"""The handle of one request, and its twin that does nothing.

    with lifecycle.request(model="smollm2") as request:
        with request.stage("queue"):
            ...

A handle is a context manager: leaving the block ends the request by what left it.  It attaches nothing to the context.
Every method may be called from any task or thread, at any time, with anything: what is wrong is counted, not raised.
``at_ns``: left out, now; an int, epoch nanoseconds; :func:`otel_lifecycle.monotonic`, an engine's clock; None, unknown.

How it works.  A handle has no logic: it passes every call to its :class:`TrackedRequest`.  It holds that; nothing else
holds the handle, so a request whose server has forgotten it is noticed.  The one thing it does by itself is a single
token, which is an append to the list that :class:`TokenPath` leads to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any

from otel_lifecycle._core import endings
from otel_lifecycle._core.values import MAX_CHUNK
from otel_lifecycle._keywords import plain_names
from otel_lifecycle._request import conditions
from otel_lifecycle._request.active import Active
from otel_lifecycle._request.clock import NOW, AtNs, past_reading
from otel_lifecycle._request.context import handle_in_context
from otel_lifecycle._request.event_kinds import is_nothing
from otel_lifecycle._request.handle_reference import refer_to
from otel_lifecycle._request.parts import open_part
from otel_lifecycle._request.phases import Phase
from otel_lifecycle._request.recorded import record_events
from otel_lifecycle._request.stages import StageBlock, stage_block
from otel_lifecycle._request.streams import Counter, TokenSource, async_stream, sync_stream
from otel_lifecycle._request.token_path import FIRST, ONE, TokenPath, append_at
from otel_lifecycle._request.tracked import TrackedRequest
from otel_lifecycle._runtime import runtime
from otel_lifecycle.errors import EventAfterTerminal

if TYPE_CHECKING:
    from typing_extensions import Self


class Request(TokenPath):
    """One request on its way through the lifecycle; made by :func:`otel_lifecycle.request`."""

    __slots__ = ("_tracked",)

    def __init__(self, tracked: TrackedRequest) -> None:
        # Not by `super().__init__()`, which would be a third of what a handle costs.
        self._ts = None
        self._tracked = tracked

    def __bool__(self) -> bool:
        """Whether it stands for a request; only the handle of no request is falsy."""
        return True

    # What is known of it.

    @property
    def state(self) -> str:
        """The state of the lifecycle table it is in; once it has ended, its outcome."""
        return self._tracked.state.name

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._tracked.ended

    @property
    def outcome(self) -> str | None:
        """``completed``, ``cancelled``, ``timed_out``, ``failed`` or ``incomplete``; None while it is open."""
        return self._tracked.state.status

    @property
    def report(self) -> dict[str, Any] | None:
        """The report of the ended request, times in epoch nanoseconds; None while it is open."""
        report = self._tracked.ending.report()
        return None if report is None else dict(report)

    # Boundaries.

    def admit(self, *, at_ns: AtNs = NOW) -> None:
        """The scheduler granted resources: ends the queue."""
        if at_ns is not NOW or not self._tracked.advance("admit"):
            self._tracked.mark("admit", at_ns)

    def input_ready(self, *, at_ns: AtNs = NOW) -> None:
        """The input may enter the model: ends preprocessing."""
        if at_ns is not NOW or not self._tracked.advance("input_ready"):
            self._tracked.mark("input_ready", at_ns)

    def first_token(self, n: float | None = 1, choice: int = 0, *, at_ns: AtNs = NOW) -> None:
        """The first output token, or a first chunk of ``n`` (None: unknown): ends prefill."""
        if n is ONE and choice is FIRST and at_ns is NOW and self._tracked.advance("first_token"):
            return
        if not is_nothing(n):
            self._tracked.mark("first_token", at_ns, n, choice)

    def token(self, n: float | None = 1, choice: int = 0, at_ns: AtNs = NOW) -> None:
        """One more output token, or ``n`` at once (None: unknown; 0: nothing).  In prefill it is the first token.

        Where the request has a ``unit``, it is one more output, and ``n`` is how much: a float for part of a second.

        ``at_ns`` is not keyword-only here alone: the default of one that is costs a fifth of the whole call.
        """
        try:
            # By identity, which costs a quarter less than by value; an equal value of another type takes the slow path.
            if n is ONE and choice is FIRST and at_ns is NOW:
                self._ts.append(perf_counter_ns())  # type: ignore[union-attr]  # None outside decode: the miss is caught
                return
        except AttributeError:  # the miss
            pass
        if self._append(n, choice, at_ns):
            return
        self._tracked.token(n, choice, at_ns)

    def _append(self, n: Any, choice: Any, at_ns: AtNs) -> bool:
        """Append tokens past the lock of the request; False where they have to be judged under it."""
        whole = self._tracked.whole
        if whole is None:
            return False
        state = whole.state
        # Before the path is read: an end closes the path first, and then takes what the logs hold.
        log = self._ts if choice is FIRST else state.timeline.tokens.get(choice) if type(choice) is int else None
        # Amounts of another unit are added up by the checker.
        if log is None or state.checker.amounts is not None:
            return False
        if n is not ONE and (type(n) is not int or not 0 < n <= MAX_CHUNK):
            return False
        reading = perf_counter_ns() if at_ns is NOW else past_reading(at_ns, state.offset)
        return reading is not None and append_at(self._ts, log, n, reading, state.timeline)

    def output(self, tokens: float | None = None, *, at_ns: AtNs = NOW) -> None:
        """A whole answer appeared at once; its first-token time stays unknown.  ``tokens``: None if unknown."""
        self._tracked.mark("output", at_ns, tokens)

    def preempt(self, *, at_ns: AtNs = NOW) -> None:
        """The engine took the request's resources back."""
        self._tracked.mark("preempt", at_ns)

    def resume(self, *, at_ns: AtNs = NOW) -> None:
        """The engine took the request up again, in the state it was interrupted in."""
        self._tracked.mark("resume", at_ns)

    # Ends.

    def complete(self, *, at_ns: AtNs = NOW, if_open: bool = False) -> None:
        """The request ended normally; legal from decode (in pooling also from prefill).

        ``if_open``, of this and the other ends: do nothing if it has ended, instead of a duplicate_terminal violation.
        Where two sides end one request, the one that may come second says so.
        """
        if at_ns is not NOW or not self._tracked.complete():
            self._tracked.end(endings.COMPLETE, at_ns, if_open=if_open)

    def cancel(self, reason: str | None = None, *, at_ns: AtNs = NOW, if_open: bool = False) -> None:
        """The request was given up.  ``reason``: one of the closed list, else ``_OTHER``."""
        self._tracked.end(endings.cancellation(reason), at_ns, if_open=if_open)

    def timeout(self, reason: str | None = None, *, at_ns: AtNs = NOW, if_open: bool = False) -> None:
        """The request ran out of time.  ``reason``: one of the closed list, else ``_OTHER``."""
        self._tracked.end(endings.timeout(reason), at_ns, if_open=if_open)

    def fail(self, error: BaseException | str | None = None, *, at_ns: AtNs = NOW, if_open: bool = False) -> None:
        """The request failed by an exception, a reason of the closed list, or an error type (an identifier)."""
        # First: a span that has ended takes no exception.
        self._tracked.show_exception(error)
        self._tracked.end(endings.failure(error, runtime().endings), at_ns, if_open=if_open)

    def finish(
        self,
        reason: object = None,
        *,
        at_ns: AtNs = NOW,
        error: object = None,
        durations: Mapping[str, float] | None = None,
    ) -> None:
        """End it by an engine's word, unless it has ended: stop, length, eos, tool_calls, ... complete it.

        abort is a cancel, timeout a timeout, error a failure by ``error``; other words, and None, complete it.  A
        request that is completed without output gets an output of 0 tokens first.  ``durations``: see
        :meth:`durations`.
        """
        if durations is not None:
            self._tracked.take_durations(durations)
        self._tracked.finish_by_word(reason, at_ns, error)

    def __enter__(self) -> Self:
        tracked = self._tracked
        if tracked.has_ended() and not tracked.ending.silenced:
            what = "a handle that has ended was entered"
            tracked.violate(EventAfterTerminal(what, state=tracked.state.status, event="arrive"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        tracked = self._tracked
        # What `leave` tries first, without its call.
        if error is not None or not tracked.complete():
            tracked.leave(error)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._tracked.leave(error)

    # Conditions.

    def usage(
        self,
        *,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        cached_tokens: int | None = None,
    ) -> None:
        """The token counts the engine gives; ``output_tokens`` completes a count that marks left unknown."""
        given = {"input_tokens": input_tokens, "output_tokens": output_tokens, "cached_tokens": cached_tokens}
        self._tracked.set(conditions.given(given))

    def durations(self, stages: Mapping[str, float]) -> None:
        """How long stages took in seconds, by name, where the engine tells nothing else of them.

        When the request completes, boundaries that nobody marked are placed by them: back from the first token, or
        from a whole answer.  The queue is what remains, a ``preprocessing`` that is not given included.  Durations that
        do not fit the request place nothing.  ``inference.derived`` names the stages that were found in this way.
        """
        self._tracked.take_durations(stages)

    def assume_sizes(self) -> None:
        """Note that frames are counted as one token each although they do not say how many they hold.

        If a usage figure then exceeds the count by more than max(3, 3 %), the frames were chunks of unknown size: no
        inter-token latency is recorded, and ``inference.streamed_chunks`` takes the place of ``streamed_tokens``.
        """
        self._tracked.assume_sizes()

    def set(self, **values: Any) -> None:
        """Set conditions that were not known at arrival; the names are those of :func:`otel_lifecycle.request`.

        ``attributes``: a mapping of the server's own, at most 32 a request.  They are on the span and never label a
        metric.  ``shape``: as of :func:`otel_lifecycle.request`, until the first boundary that the two shapes do not
        have in common; later it is an ``invalid_value`` violation.
        """
        self._tracked.set(conditions.given(plain_names(values)))

    def response(
        self,
        *,
        id: str | None = None,  # the contract's name
        model: str | None = None,
        finish_reasons: Iterable[str] | None = None,
    ) -> None:
        """What the response says of itself: its id, the model that answered, why each choice ended."""
        self._tracked.response(id, model, finish_reasons)

    # Blocks.

    def stage(self, name: str) -> StageBlock:
        """A block spent in ``queue``, ``preprocessing`` or ``prefill``: leaving it emits the event that leaves it.

        An exception that leaves it emits nothing.  Do not yield inside.  Any other name is an ``invalid_value``
        violation, and the body runs all the same; a part of a stage is a :meth:`phase`.
        """
        return stage_block(self._tracked, name)

    def stream(self, iterable: Any, tokens: Counter | None = None) -> Any:
        """Wrap a sync or async iterable: each item is one token, or ``tokens(item)`` tokens (0, n, None: unknown)."""
        wrap = async_stream if hasattr(iterable, "__aiter__") else sync_stream
        return wrap(lambda: TokenSource(self, self._tracked, iterable, tokens))

    def active(self) -> Active:
        """A block in which the request and its span are current, for servers that hand work on.  It ends nothing."""
        return Active(self._tracked)

    def phase(self, name: str) -> Phase:
        """A block that is a part of a stage: a span of that name inside the stage's.  It moves no state."""
        return Phase(self._tracked, name)

    def part(self, *, choice: int | None = None, arrived_at_ns: AtNs = NOW, **conditions: Any) -> Request:
        """Open a part of the request: a batch with some of its inputs, one of several passes, one of ``n`` answers.

        The part is a handle of its own, with stages, tokens and an end of its own; its span is a child.  The request
        moves with its parts and ends once, by itself.  Parts that are open then end with it.  ``choice``: which answer
        the part makes; left out, each part is the next one.  ``conditions``: where they differ from the request's.
        """
        tracked = open_part(self._tracked, choice, arrived_at_ns, conditions)
        part = Request(tracked)
        tracked.open(refer_to(part, tracked), arrived_at_ns, runtime())
        return part

    # Notes.

    def event(self, name: str, attributes: Mapping[str, Any] | None = None, *, at_ns: AtNs = NOW) -> None:
        """Add an event of the server's own to the span.  With all notes of a request, the first 64 are kept."""
        self._tracked.show(name, attributes, at_ns)

    def client_disconnected(self, *, at_ns: AtNs = NOW) -> None:
        """The client left.  A note: what the server does is marked by its own events."""
        self._tracked.note("client_disconnected", at_ns)

    def delivered(self, *, at_ns: AtNs = NOW) -> None:
        """The first byte was sent to the client.  A note; only the first counts."""
        self._tracked.note("delivered", at_ns)

    def prefill_chunk(self, *, at_ns: AtNs = NOW) -> None:
        """A part of a chunked prefill is done.  A note: prefill goes on until the first token."""
        self._tracked.note("prefill_chunk", at_ns)

    # Elsewhere.

    def carrier(self) -> dict[str, str]:
        """The trace context of this request as headers, for an engine in another process."""
        return self._tracked.carrier()

    def record(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Take over what an engine in another process marked: ``[{'event', 'timestamp', ...}]`` in epoch nanoseconds.

        An event is named as the method that marks it, and takes the arguments of that: ``count`` and ``choice`` of
        tokens, ``reason``, ``error``, and those of ``usage`` and ``response``, which need no timestamp.  The engine's
        clock is judged by itself.
        """
        record_events(self._tracked, events)

    def __copy__(self) -> Self:
        """Return the handle itself: a copy of a struct that holds it means the same request."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> str:
        # A copy in another process would end the request a second time.
        raise TypeError(
            "a request handle does not leave its process; send request.carrier(), and record() what comes back"
        )

    def __repr__(self) -> str:
        tracked = self._tracked
        trace_id = tracked.span.get_span_context().trace_id
        return f"<Request {tracked.labels.operation} {tracked.state.name} trace={trace_id:032x}>"


def tracked_of(handle: Request) -> TrackedRequest | None:
    """Return what a handle stands for, for the driver; None for the no-op handle."""
    return getattr(handle, "_tracked", None)


def current_handle() -> Request | None:
    """Return the current request if there is one that has not ended."""
    handle = handle_in_context()
    return handle if isinstance(handle, Request) and not handle.ended else None
