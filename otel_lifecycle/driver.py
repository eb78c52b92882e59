"""The driver: for everything that acts for a server, such as a drop-in of an engine, a middleware or a decorator.

A server author writes ``lifecycle.request()``.  Code that stands between a server and its engine cannot: somebody may
have opened the request already, may mark some of its boundaries, and may be the one to end it.  A driver joins the
request that is current or opens one, knows whether its end is owned, and marks what others have not:

    from otel_lifecycle import driver

    def instrumented(engine, prompt, **options):
        drive = driver.begin(model=engine.model, backend="my-engine")     # arrive, or join
        with drive.active():
            job = engine.submit(prompt, **options)
        job.on_start = lambda seconds: drive.mark("admit", at_ns=lifecycle.monotonic(seconds))
        job.on_token = lambda text: drive.item()                          # first_token, token, token, ...
        job.on_end = lambda reason: drive.finish(reason)                  # complete, cancel, timeout or fail

Nothing here raises into the server, except where a processor is strict.  Where there is no SDK the driver is falsy and
does nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from opentelemetry.context import Context, get_current
from opentelemetry.trace import TracerProvider

from otel_lifecycle._core import endings
from otel_lifecycle._core.endings import Terminal
from otel_lifecycle._core.stage_durations import stage_durations
from otel_lifecycle._request.active import Active
from otel_lifecycle._request.clock import NOW, Anchor, AtNs, moment
from otel_lifecycle._request.conditions import given
from otel_lifecycle._request.context import context_of
from otel_lifecycle._request.engine_seat import engine_is_shared, engines_are_mixed
from otel_lifecycle._request.engine_step import record_step
from otel_lifecycle._request.handle import Request, current_handle
from otel_lifecycle._request.opening import Parent, open_request
from otel_lifecycle._request.streams import (
    Counter,
    TokenSource,
    UnmarkedSource,
    async_stream,
    count_of,
    eager_stream,
    sync_stream,
)
from otel_lifecycle._request.view import RequestView
from otel_lifecycle._runtime import runtime

__all__ = ["Active", "Driver", "RequestMarks", "Terminal", "adopt", "begin", "terminal_of"]
__all__ += ["engine_is_shared", "engines_are_mixed", "record_step"]


def begin(
    conditions: Mapping[str, object] | None = None,
    *,
    join: bool = True,
    shape: str = "default",
    arrived_at_ns: AtNs = NOW,
    started: Anchor | None = None,
    parent: Parent = None,
    previous: object = None,
    tracer_provider: TracerProvider | None = None,
    marked: bool = False,
    **more: object,
) -> Driver:
    """Join the current request if one is open (``owned`` is False then), else open one (``owned`` is True).

    ``conditions`` and ``more``: the conditions of :func:`otel_lifecycle.request`; None is unset, an impossible value is
    a violation.  ``join=False``: always open.  ``parent``: as of ``request()``.  ``started``: both clocks at its
    arrival, where that was before this call.  ``marked=False``: nobody is known to mark boundaries; until the first
    mark the request is active under stage ``unknown``, and a failure has no stage.  Raises ConfigurationError for a
    shape that does not exist.
    """
    outer = current_handle() if join else None
    if outer is not None:
        return Driver(outer, owned=False)
    request = open_request(
        given({**(conditions or {}), **more}),
        shape=shape,
        arrived_at_ns=arrived_at_ns,
        previous=previous,
        tracer_provider=tracer_provider,
        started=started,
        parent=parent,
        unmarked=not marked,
    )
    return Driver(request, owned=True)


def adopt(request: Request, *, owned: bool) -> Driver:
    """Drive a request that somebody else opened; ``owned``: whether its end is yours."""
    return Driver(request, owned=owned)


def terminal_of(reason: object, *, error: object = None) -> Terminal:
    """Return the terminal event that an engine's word for the end of a request stands for."""
    return endings.of_finish_reason(reason, error, runtime().endings)


class Driver(RequestView):
    """One request as code that acts for its server drives it.  ``owned``: whether its end is theirs, too."""

    __slots__ = ("owned",)

    def __init__(self, request: Request, *, owned: bool) -> None:
        super().__init__(request)
        self.owned = owned

    def stage_durations(self) -> dict[str, float]:
        """Return the seconds of each stage that is over so far, by its name, if its length is known."""
        return {} if self._tracked is None else stage_durations(self._tracked.state.timeline, 10**9)

    def mark(
        self,
        event: str,
        *,
        at_ns: AtNs = NOW,
        at_monotonic_ns: int | None = None,
        count: int | None = 1,
        choice: int = 0,
    ) -> bool:
        """Mark an event of the lifecycle or a note; return whether it was news.

        An event that the request has already passed is ignored: two sources may report the same one.  One that lies
        ahead passes the boundaries before it at unknown times.  ``at_monotonic_ns``: a reading of
        ``time.monotonic_ns()``, instead of ``at_ns``.
        """
        if self._tracked is None:
            return False
        return self._tracked.mark_news(event, moment(at_ns, at_monotonic_ns), count, choice)

    def item(
        self, n: float | None = 1, choice: int = 0, *, at_ns: AtNs = NOW, at_monotonic_ns: int | None = None
    ) -> None:
        """Mark ``n`` tokens of output (None: unknown, 0: nothing); boundaries that nobody marked pass with it."""
        if self._tracked is not None:
            self._tracked.item(n, choice, moment(at_ns, at_monotonic_ns))

    def answer(self, tokens: int | None = None, *, at_ns: AtNs = NOW, at_monotonic_ns: int | None = None) -> None:
        """Mark a whole result that is there at once, unless something has come out before.  It does not end it."""
        if self._tracked is not None:
            self._tracked.whole_answer(tokens, moment(at_ns, at_monotonic_ns))

    def set(self, **conditions: Any) -> None:
        """Set conditions."""
        self.request.set(**conditions)

    def suggest(self, **conditions: Any) -> None:
        """Set the conditions of these that nobody has given yet."""
        if self._tracked is not None and not self._tracked.ended:
            self.request.set(**{name: value for name, value in conditions.items() if not self.has(name)})

    def follow_shape(self, shape: str) -> None:
        """Go on in the shape of the engine, if nobody has marked a stage of the request yet."""
        if self._tracked is not None:
            self._tracked.follow_shape(shape)

    def usage(
        self, *, input_tokens: int | None = None, output_tokens: int | None = None, cached_tokens: int | None = None
    ) -> None:
        """Give the token counts of the engine."""
        self.request.usage(input_tokens=input_tokens, output_tokens=output_tokens, cached_tokens=cached_tokens)

    def response(self, *, id: str | None = None, model: str | None = None, finish_reasons: Any = None) -> None:
        """Give what the response says of itself."""
        self.request.response(id=id, model=model, finish_reasons=finish_reasons)

    def context(self, base: Context | None = None) -> Context:
        """Return a context in which the request, and its span, are current."""
        base = get_current() if base is None else base
        return base if self._tracked is None else context_of(self._tracked, base)

    def active(self) -> Active:
        """Return a block, sync or async, in which the request and its span are current."""
        return Active(self._tracked)

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call with the request current; an exception ends it, if that is owned, and goes on."""
        try:
            with self.active():
                return function(*args, **kwargs)
        except BaseException as error:
            self.leave(error)
            raise

    async def wait(self, awaitable: Awaitable[Any]) -> Any:
        """Await with the request current; an exception ends it, if that is owned, and goes on."""
        try:
            with self.active():
                return await awaitable
        except BaseException as error:
            self.leave(error)
            raise

    def stream(
        self,
        iterable: Any,
        *,
        tokens: Counter | None = None,
        read: Callable[[Any], None] | None = None,
        eager: bool = False,
    ) -> Any:
        """Wrap a sync or async iterable whose end is the end of the request, if that is owned.

        The request is current while an item is made and never while the consumer has it.  Each item is one token, or
        ``tokens(item)`` tokens; one in whose making tokens were marked is not marked again.  With ``read`` the items
        mark nothing by themselves and are handed to it.  ``eager``: a sync stream that is closed or dropped before its
        first item ends the request too.
        """
        if self._tracked is None:
            return iterable
        start = partial(self.source, iterable, tokens=tokens, read=read)
        if hasattr(iterable, "__aiter__"):
            return async_stream(start)
        return eager_stream(start) if eager else sync_stream(start)

    def source(
        self, iterable: Any, *, tokens: Counter | None = None, read: Callable[[Any], None] | None = None
    ) -> TokenSource | UnmarkedSource:
        """Return what a stream of this request is made from."""
        if self._tracked is None:
            return UnmarkedSource(iterable)
        leave = self.leave if read is None else self._read_to_the_end
        return TokenSource(self.request, self._tracked, iterable, tokens, leave=leave, read=read, traced=read is None)

    def _read_to_the_end(self, error: BaseException | None) -> None:
        if error is None:
            self.answered()
        else:
            self.leave(error)

    def count_of(self, tokens: Counter, item: Any) -> Any:
        """Return ``tokens(item)``; a counter that raises makes it unknown, and a violation."""
        return None if self._tracked is None else count_of(self._tracked, tokens, item)

    def returned(self, result: Any, *, tokens: Counter | None = None) -> Any:
        """Take a function's result: wrap it if it goes on, else it is the whole answer and the end."""
        if self._tracked is None:
            return result
        # First: a streaming response is not an iterator itself, its body is.
        body = _attribute(result, "body_iterator")
        if body is not None and self._wrap_body(result, body, tokens):
            return result
        if _attribute(result, "__aiter__") is not None or _attribute(result, "__next__") is not None:
            return self.stream(result, tokens=tokens)
        if callable(_attribute(result, "add_done_callback")):
            # A future stays the future it is: callers wait for it, cancel it and hand it on.
            result.add_done_callback(partial(self._done, tokens))
            return result
        if _attribute(result, "__await__") is not None or inspect.isawaitable(result):
            return self._awaited(result, tokens)
        self._answer_with(result, tokens)
        return result

    def _wrap_body(self, response: Any, body: Any, tokens: Counter | None) -> bool:
        """Put the wrapped body into a response; False where the response does not take it."""
        try:
            response.body_iterator = self.stream(body, tokens=tokens)
        except Exception:  # noqa: BLE001  # it is immutable: its end is not seen, so the answer is taken as given
            return False
        return True

    def _answer_with(self, result: Any, tokens: Counter | None) -> None:
        # Where another owns the end, output may still come from it.
        if self.owned and self.awaits_output:
            self.answer(None if tokens is None else self.count_of(tokens, result))
        self.leave(None)

    def _done(self, tokens: Counter | None, future: Any) -> None:
        """Take what a future gave; it is called by the future, which swallows no exception of ours: there is none."""
        try:
            result = future.result()
        except BaseException as error:  # noqa: BLE001  # the caller that waits for the future gets it
            self.leave(error)
        else:
            self._answer_with(result, tokens)

    async def _awaited(self, awaitable: Any, tokens: Counter | None) -> Any:
        return self.returned(await self.wait(awaitable), tokens=tokens)

    def reader(self, *, counts: bool = True) -> RequestMarks:
        """Return what a :class:`otel_lifecycle.openai.FrameFeed` marks; with ``counts`` its tokens, too."""
        return RequestMarks(self, counts=counts)

    # The end.  All of this does nothing where the end is not owned, or has come.

    def finish(
        self,
        reason: object = None,
        *,
        at_ns: AtNs = NOW,
        at_monotonic_ns: int | None = None,
        error: object = None,
    ) -> None:
        """End it by an engine's word: stop, length, eos, tool_calls, ... complete it; abort, timeout, error do not.

        A request that is completed without output gets an output of 0 tokens first.  ``error``: what is known of a
        failure.  Words that are not known, and None, mean a normal completion.
        """
        if self._tracked is not None and self.owned:
            self._tracked.finish_by_word(reason, moment(at_ns, at_monotonic_ns), error)

    def leave(self, error: BaseException | None = None) -> None:
        """End it by what left the call: complete if that is legal, else incomplete; an exception by the table."""
        if self._tracked is not None and self.owned:
            self._tracked.leave(error)

    def end(self, terminal: Terminal | None, *, at_ns: AtNs = NOW, at_monotonic_ns: int | None = None) -> None:
        """End it by a terminal event; None: complete if that is legal, else incomplete."""
        if self._tracked is not None and self.owned and not self._tracked.ended:
            self._tracked.end_as(terminal, moment(at_ns, at_monotonic_ns))

    def end_unless(self, terminal: Terminal | None, *, at_ns: AtNs = NOW) -> None:
        """Let it end as ``terminal`` at ``at_ns`` when its handle is dropped or at shutdown, unless it ends before.

        For an answer that is out while an exception may still follow: until then the request is active no more.
        """
        if self._tracked is not None and self.owned:
            self._tracked.end_unless(terminal, at_ns)

    def answered(self) -> None:
        """Take the call's end as that of its whole answer: what nobody marked by now is there."""
        if self._tracked is not None and self.awaits_output:
            self.answer(self.output_tokens)
        self.leave(None)

    def terminal_for(self, error: BaseException, *, inside: bool = False) -> Terminal | None:
        """Return how an exception would end it; ``inside``: it came out of the engine, not out of the client's side."""
        return None if self._tracked is None else self._tracked.terminal_of(error, inside=inside)


def _attribute(result: Any, name: str) -> Any:
    """Return an attribute; None where there is none, or where the result's own methods raise."""
    try:
        return getattr(result, name, None)
    except Exception:  # noqa: BLE001  # a proxy of a remote object, say
        return None


class RequestMarks:
    """A request as a feed of frames sees it: boundaries that nobody marked pass, its end may be another's.

    ``counts``: whether its tokens are marked; not where they are known better, or the frame is a whole answer: a text
    completion looks the same then as a frame of a streamed one.
    """

    __slots__ = ("_counts", "_driver")

    def __init__(self, driver: Driver, *, counts: bool = True) -> None:
        self._driver = driver
        self._counts = counts

    def usage(
        self, *, input_tokens: int | None = None, output_tokens: int | None = None, cached_tokens: int | None = None
    ) -> None:
        """Note the figures the engine counted."""
        self._driver.usage(input_tokens=input_tokens, output_tokens=output_tokens, cached_tokens=cached_tokens)

    def token(self, n: int | None = 1, choice: int = 0) -> None:
        """Mark tokens of one choice."""
        if self._counts:
            self._driver.item(n, choice)

    def assume_sizes(self) -> None:
        """Note that frames count as one token each without saying so."""
        if self._counts:
            self._driver.request.assume_sizes()

    def durations(self, stages: Mapping[str, float]) -> None:
        """Note how long the engine says its stages took."""
        self._driver.request.durations(stages)

    def output(self, tokens: int | None = None) -> None:
        """Mark a whole answer, or note the number of its tokens."""
        if self._counts:
            self._driver.answer(tokens)
        else:
            self.usage(output_tokens=tokens)

    def response(self, *, id: str | None = None, model: str | None = None, finish_reasons: Any = None) -> None:
        """Note what the answer says of itself."""
        self._driver.response(id=id, model=model, finish_reasons=finish_reasons)

    def cancel(self, reason: str | None = None) -> None:
        """End it as cancelled."""
        self._driver.end(endings.cancellation(reason))

    def timeout(self, reason: str | None = None) -> None:
        """End it as timed out."""
        self._driver.end(endings.timeout(reason))

    def fail(self, error: str | None = None) -> None:
        """End it as failed."""
        self._driver.end(endings.failure(error, runtime().endings))
