"""Opening requests, finding the current one, and marking a whole batch.

How it works.  Opening starts the span first, because only the start shows which processor takes the request.  Where
neither a processor nor a recording span would see it, the shared no-op handle is returned instead.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from opentelemetry.context import Context, get_current
from opentelemetry.trace import Link, TracerProvider

from otel_lifecycle import _propagation
from otel_lifecycle._core.lifecycle import SHAPES, get_shape
from otel_lifecycle._core.text import is_a
from otel_lifecycle._keywords import plain_names, refuse_unknown, with_keywords
from otel_lifecycle._log import say
from otel_lifecycle._request.clock import NOW, Anchor, AtNs, MonotonicTime, anchor, arrival_of, past_reading
from otel_lifecycle._request.conditions import (
    CONDITION_DEFAULTS,
    ConditionKeywords,
    check_role,
    given,
)
from otel_lifecycle._request.handle import Request, current_handle, tracked_of
from otel_lifecycle._request.handle_reference import refer_to
from otel_lifecycle._request.kinds import RequestKind
from otel_lifecycle._request.no_request import NO_REQUEST
from otel_lifecycle._request.span_writer import start_request_span
from otel_lifecycle._request.stages import CurrentStage
from otel_lifecycle._request.tracers import TracerSource, source_of
from otel_lifecycle._request.tracked import TrackedRequest
from otel_lifecycle._runtime import Claim, Runtime, runtime, with_claim
from otel_lifecycle.errors import InvalidValue

if TYPE_CHECKING:
    from typing_extensions import Unpack

_NOTHING_WRONG: Final[Sequence[InvalidValue]] = ()
_find_shape: Final = SHAPES.get

Parent: TypeAlias = "Context | Mapping[Any, Any] | Iterable[tuple[Any, Any]] | None"
"""What carries the trace that a request belongs to."""


@with_keywords(CONDITION_DEFAULTS)
def request(
    *,
    arrived_at_ns: AtNs = NOW,
    parent: Parent = None,
    previous: Request | Mapping[str, str] | None = None,
    shape: str = "default",
    tracer_provider: TracerProvider | None = None,
    **conditions: Unpack[ConditionKeywords],
) -> Request:
    """Open a request: it has arrived.  Returns its handle, which is also a context manager.

    ``arrived_at_ns``: when it entered the process, epoch nanoseconds (None: unknown; left out: now).  ``parent``: what
    carries the caller's trace: a mapping or pairs of headers, a WSGI environ, the metadata of gRPC, or a context; left
    out, the current span.  ``previous``: the attempt before, its handle or its carrier.  The conditions are those of
    :class:`otel_lifecycle.types.ConditionKeywords`; what is None is absent.

    Raises ConfigurationError for a shape or role that does not exist, TypeError for a keyword that does not.  An
    impossible condition is an ``invalid_value`` violation.
    """
    here = runtime()
    started = here.clock_offset.read()
    # As `get_shape` does it, without the call.
    the_shape = _find_shape(shape) if type(shape) is str else None
    if the_shape is None:
        the_shape = get_shape(shape)
    source = source_of(tracer_provider, here)
    kind, wrong = source.kinds.find(the_shape, conditions), _NOTHING_WRONG
    if kind is None:
        plain = plain_names(conditions)
        refuse_unknown("request", plain, CONDITION_DEFAULTS)
        check_role(plain.get("role", "whole"))
        kind, wrong = source.read_kind(the_shape, given(plain))
    if not wrong:
        return _open(here, source, kind, started, arrived_at_ns, previous, parent, False)
    # Not by a local name: a fault's traceback keeps this frame, and so would the frame keep the handle.
    return _with_faults(_open(here, source, kind, started, arrived_at_ns, previous, parent, False), wrong)


def open_request(
    values: Mapping[str, object],
    *,
    shape: str = "default",
    arrived_at_ns: AtNs = NOW,
    previous: object = None,
    tracer_provider: TracerProvider | None = None,
    started: Anchor | None = None,
    parent: Parent = None,
    unmarked: bool = False,
) -> Request:
    """Open a request of given conditions; ``started`` and ``parent`` where it arrived earlier, in another context.

    ``unmarked``: the one that opens it marks no boundaries; the first output passes those that nobody marked.
    """
    here = runtime()
    if started is None:
        started = anchor()
    source = source_of(tracer_provider, here)
    kind, wrong = source.read_kind(get_shape(shape), values)
    return _with_faults(_open(here, source, kind, started, arrived_at_ns, previous, parent, unmarked), wrong)


def _open(
    here: Runtime,
    source: TracerSource,
    kind: RequestKind,
    started: tuple[int, int],
    arrived_at_ns: AtNs,
    previous: object,
    parent: Parent,
    unmarked: bool,
) -> Request:
    opened, offset = started
    if here.dropped or opened >= here.sweep_due or here.forked:  # the look that `housekeep` takes, without its call
        here.before_opening()
    context = get_current() if parent is None else _propagation.parent_context(parent, get_current())
    claim: Claim = []  # it travels in the context of this span: the first processor to see that start takes the request
    try:
        link = None if previous is None else _link_to(previous)
        # At arrival; at the moment of the call where that is unknown or impossible.
        start = offset + (opened if arrived_at_ns is NOW else arrival_of(arrived_at_ns, opened, offset))
        claiming = with_claim(context, claim)
        span = start_request_span(source, context, claiming, kind, link, start)
    except Exception as error:  # noqa: BLE001  # the server's request must not fail for a sampler or another processor
        say("start_span", "a request span could not be started", level=logging.ERROR, error=error)
        return NO_REQUEST
    assessor, unseen = claim[0] if claim else None, False
    if assessor is not None:
        source.seen_with(assessor)
    elif not span.is_recording():
        # No processor ever sees an unsampled span; the provider tells which one the request belongs to.
        assessor, unseen = source.assessor(here), True
        if assessor is None:
            return NO_REQUEST
    tracked = TrackedRequest(kind, opened, offset, source, context, span, assessor, unseen, unmarked)
    handle = Request(tracked)
    tracked.open(refer_to(handle, tracked), arrived_at_ns, here)
    return handle


def _with_faults(handle: Request, wrong: Iterable[InvalidValue]) -> Request:
    """Count what was wrong with the conditions of a request, now that it is there."""
    tracked = tracked_of(handle)
    if tracked is not None:
        for invalid in wrong:
            tracked.violate(invalid)
    return handle


def _link_to(previous: object) -> Link | None:
    if is_a(previous, Request):
        before = tracked_of(previous)  # type: ignore[arg-type]  # a handle by the line above
        previous = None if before is None else before.span.get_span_context()
    return _propagation.link_to(previous)


def current() -> Request:
    """Return the current request; outside of one, the shared no-op handle."""
    return current_handle() or NO_REQUEST


def stage(name: str) -> CurrentStage:
    """A block or a decorator spent in a stage of the current request: ``queue``, ``preprocessing`` or ``prefill``."""
    return CurrentStage(name, lambda name: current().stage(name))


def step(requests: Iterable[Request], *, at_ns: AtNs = NOW, counts: Iterable[int | None] | None = None) -> None:
    """Mark one token for each request of a batch, or ``counts`` tokens each, all at one time.

    ``at_ns``: that time, if it is not now: epoch nanoseconds, :func:`otel_lifecycle.monotonic`, or None for unknown.
    """
    if counts is not None or at_ns is not NOW:
        # One reading for the whole batch: with NOW each token would read the clock by itself.
        _step_at(requests, MonotonicTime.now() if at_ns is NOW else at_ns, counts)
        return
    now = perf_counter_ns()
    for handle in requests:
        try:
            handle._ts.append(now)  # type: ignore[union-attr]  # None outside decode: the miss is caught
        except Exception:  # noqa: BLE001  # what is not a request may raise anything; a batch is never broken off
            _token_of(handle)
    # A comparison instead of a call, since an engine comes past here in every iteration.
    if now >= runtime().sweep_due:
        runtime().housekeep()


def _step_at(requests: Iterable[Request], at_ns: AtNs, counts: Iterable[int | None] | None) -> None:
    if counts is None:
        _step_of_singles(requests, at_ns)
    else:
        for handle, count in zip(requests, counts, strict=False):
            if is_a(handle, Request):
                handle.token(count, 0, at_ns)
    runtime().housekeep()


def _step_of_singles(requests: Iterable[Request], at_ns: AtNs) -> None:
    """Mark one token for each request at a given time: an append where nothing about it has to be judged."""
    now = perf_counter_ns()
    epoch = at_ns if type(at_ns) is int else None
    # One reading of a monotonic clock serves all; an epoch time is placed on the anchor of each request.
    reading: Any = past_reading(at_ns, 0) if epoch is None else None
    # The last time that was not later: a batch that was stepped together ends in one object, which is compared once.
    same: object = None
    for handle in requests:
        try:
            log: Any = handle._ts
            if epoch is not None:
                reading = epoch - handle._tracked.offset
                if reading > now:
                    reading = None
            elif log[-1] is same:
                log.append(reading)
                continue
            # A closed path, a chunk before it and a time that is none, or not past, raise TypeError.
            if (last := log[-1]) <= reading:
                log.append(reading)
                same = last
                continue
        except Exception:  # noqa: BLE001, S110  # anything else than a request may raise; the batch goes on
            pass
        if is_a(handle, Request):
            handle.token(1, 0, at_ns)


def _token_of(handle: object) -> None:
    """Mark a token the slow way: the first one, one after the end, or no request at all."""
    if is_a(handle, Request):
        handle.token()  # type: ignore[attr-defined]  # a handle by the line above
