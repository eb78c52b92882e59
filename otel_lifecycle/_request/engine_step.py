"""One iteration of an engine that batches requests: its duration, its size, and a token for each that decodes.

How it works.  The clock is read when the block is entered and once when it is left.  That second reading is the time of
every token of the iteration, since the engine hands all of them over at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import perf_counter_ns
from types import TracebackType

from otel_lifecycle._request.handle import Request, tracked_of
from otel_lifecycle._request.tracked import TrackedRequest


class EngineStep:
    """A block that is one iteration; made by :func:`engine_step`.

    On leaving it, each request in ``decode`` gets one token, and each in ``prefill`` that was given to
    :meth:`first_token` its first, all at one reading of the clock.  A block that an exception leaves marks and records
    nothing: what came of the iteration is not known.
    """

    __slots__ = ("_decode", "_first", "_prefill", "_started")

    def __init__(self, decode: Sequence[Request], prefill: Sequence[Request]) -> None:
        self._decode = decode
        self._prefill = prefill
        self._first: list[Request] = []
        self._started = 0

    def first_token(self, request: Request) -> None:
        """Note that this iteration ends the request's prefill."""
        self._first.append(request)

    def __enter__(self) -> EngineStep:
        """Start the clock."""
        self._started = perf_counter_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Mark the tokens, and record the iteration."""
        if error is not None:
            return
        now = perf_counter_ns()
        for request in self._first:
            tracked = _tracked(request)
            if tracked is not None:
                # In epoch time, as every given one; the request takes its own offset off again, so the reading stays
                # exact.
                tracked.mark("first_token", now + tracked.state.offset)
        for request in self._decode:
            try:
                request._ts.append(now)  # type: ignore[union-attr]  # None outside decode: the miss is caught
            except AttributeError:
                # The first token, one after the end, or no request at all.
                request.token()
        self._record(now)

    def _record(self, now: int) -> None:
        """Record the iteration with the labels of its first request."""
        first = next((request for request in (*self._decode, *self._prefill) if _tracked(request)), None)
        if first is not None:
            record_step(first, (now - self._started) / 1e9, decode=len(self._decode), prefill=len(self._prefill))


def engine_step(*, decode: Iterable[Request] = (), prefill: Iterable[Request] = ()) -> EngineStep:
    """Time one iteration of an engine, as a block.

    ``decode``: the requests that get a token from it.  ``prefill``: those whose input it works on; they stay in prefill
    unless ``step.first_token(request)`` is called, ``step`` being what the block is given.  The histograms
    ``inference.step.duration`` and ``inference.step.requests`` get its duration and size; an empty one records nothing.
    """
    return EngineStep(list(decode), list(prefill))


def record_step(request: Request, seconds: float, *, decode: int = 0, prefill: int = 0) -> None:
    """Record one iteration that an engine timed itself; it marks no token.

    ``request``: one of the engine, open or not, whose labels the figures get.  ``decode`` and ``prefill``: how many
    requests the iteration gave a token, and of how many it worked on the input; an empty one records nothing.
    """
    tracked = _tracked(request)
    if tracked is None or tracked.assessor is None or decode + prefill <= 0:
        return
    kind = "mixed" if decode and prefill else "decode" if decode else "prefill"
    tracked.assessor.record_step(kind, seconds, decode + prefill, tracked.labels, tracked.writer.exemplar_context())


def _tracked(request: object) -> TrackedRequest | None:
    return tracked_of(request) if isinstance(request, Request) else None
