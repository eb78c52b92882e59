"""Opening requests, finding the current one, and marking a whole batch.

How it works.  Opening starts the span first, because only the start shows which processor takes the request.  Where
neither a processor nor a recording span would see it, the shared no-op handle is returned instead.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from itertools import repeat
from time import perf_counter_ns
from typing import Any, Final, TypeAlias

from opentelemetry.context import Context, get_current
from opentelemetry.trace import TracerProvider

from otel_lifecycle import _propagation, semconv
from otel_lifecycle._core.lifecycle import get_shape
from otel_lifecycle._core.text import is_a
from otel_lifecycle._log import say
from otel_lifecycle._request.clock import NOW, Anchor, AtNs, MonotonicTime, anchor
from otel_lifecycle._request.conditions import RequestConditions, check_role, given
from otel_lifecycle._request.handle import Request, current_handle, tracked_of
from otel_lifecycle._request.handle_reference import refer_to
from otel_lifecycle._request.no_request import NO_REQUEST
from otel_lifecycle._request.span_writer import SpanWriter
from otel_lifecycle._request.stages import CurrentStage
from otel_lifecycle._request.state import RequestState
from otel_lifecycle._request.tracers import source_of
from otel_lifecycle._request.tracked import TrackedRequest
from otel_lifecycle._runtime import Claim, runtime, with_claim

OPERATIONS: Final = {"pooling": "embeddings"}
"""What a shape does unless told otherwise; all others chat."""


Parent: TypeAlias = "Context | Mapping[Any, Any] | Iterable[tuple[Any, Any]] | None"
"""What carries the trace that a request belongs to."""


def request(
    *,
    model: str | None = None,
    operation: str | None = None,
    engine: str | None = None,
    provider: str | None = None,
    request_id: str | None = None,
    input_tokens: int | None = None,
    output_tokens: int | None = None,
    max_tokens: int | None = None,
    stream: bool | None = None,
    cached_tokens: int | None = None,
    batch_size: int | None = None,
    concurrency: int | None = None,
    dtype: str | None = None,
    backend: str | None = None,
    backend_version: str | None = None,
    revision: str | None = None,
    cache_policy: str | None = None,
    attempt: int | None = None,
    previous: Request | Mapping[str, str] | None = None,
    role: str = "whole",
    traffic: str = "live",
    workload: str | None = None,
    tenant: str | None = None,
    arrived_at_ns: AtNs = NOW,
    parent: Parent = None,
    deadline: float | None = None,
    shape: str = "default",
    tracer_provider: TracerProvider | None = None,
) -> Request:
    """Open a request: it has arrived.  Returns its handle, which is also a context manager.

    ``arrived_at_ns``: when it entered the process, epoch nanoseconds (None: unknown; left out: now).  ``parent``: what
    carries the caller's trace: a mapping or pairs of headers, a WSGI environ, the metadata of gRPC, or a context; left
    out, the current span.  ``deadline``: seconds after arrival from which a cancellation is a timeout.  ``previous``:
    the attempt before, its handle or its carrier.  ``engine``: what requests compete for, the model by default.
    ``role``: whole, or prefill or decode for a part of a disaggregated request, which feeds stage durations only.
    ``traffic``: live, or a word that keeps the metrics of other traffic apart, such as ``warmup``.  The rest are
    conditions; what is None is absent.

    Raises ConfigurationError for a shape or role that does not exist.  An impossible condition is an
    ``invalid_value`` violation.
    """
    values = given(
        {
            "model": model,
            "operation": operation,
            "engine": engine,
            "provider": provider,
            "request_id": request_id,
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
            "max_tokens": max_tokens,
            "stream": stream,
            "cached_tokens": cached_tokens,
            "batch_size": batch_size,
            "concurrency": concurrency,
            "dtype": dtype,
            "backend": backend,
            "backend_version": backend_version,
            "revision": revision,
            "cache_policy": cache_policy,
            "attempt": attempt,
            "role": check_role(role),
            "traffic": traffic,
            "workload": workload,
            "tenant": tenant,
            "deadline": deadline,
        }
    )
    return open_request(
        values,
        shape=shape,
        arrived_at_ns=arrived_at_ns,
        parent=parent,
        previous=previous,
        tracer_provider=tracer_provider,
    )


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
    the_shape = get_shape(shape)
    here = runtime()
    # Before another one is opened, so that dropped requests end at least as fast as new ones come.
    here.housekeep()
    here.warn_after_fork()
    context = get_current() if parent is None else _propagation.parent_context(parent, get_current())
    state = RequestState(the_shape, anchor() if started is None else started, unmarked=unmarked)
    conditions = RequestConditions()
    wrong = conditions.take_all({"operation": OPERATIONS.get(the_shape.name, "chat"), **values})
    writer = SpanWriter(source_of(tracer_provider), context, state.offset)
    # It travels in the context of this one span; the first processor that sees the span start takes the request.
    claim = Claim()
    try:
        _start_span(writer, state, conditions, with_claim(context, claim), arrived_at_ns, previous)
    except Exception as error:  # noqa: BLE001  # a sampler's or another processor's; the server's request must not fail for it
        say("start_span", "a request span could not be started", level=logging.ERROR, error=error)
        return NO_REQUEST
    assessor = claim.assessor
    if assessor is not None:
        here.seen_with(writer.provider, assessor)
    # No processor ever sees an unsampled span; the provider tells which one the request belongs to.
    elif not writer.span.is_recording():
        state.events.unseen = True
        assessor = here.assessor_for(writer.provider)
        if assessor is None:
            return NO_REQUEST
    tracked = TrackedRequest(state, conditions, writer)
    handle = Request(tracked)
    tracked.open(refer_to(handle, tracked), assessor, arrived_at_ns)
    # Only now: before `open` it is not known whether the processor is strict.
    for invalid in wrong:
        tracked.violate(invalid)
    return handle


def _start_span(
    writer: SpanWriter,
    state: RequestState,
    conditions: RequestConditions,
    claiming: Context,
    arrived_at_ns: AtNs,
    previous: object,
) -> None:
    """Start the request span at arrival; at the moment of the call where arrival is unknown or impossible."""
    attributes = conditions.attributes
    attributes[semconv.GEN_AI_OPERATION_NAME] = conditions.labels.operation
    if state.timeline.shape.name != "default":
        attributes[semconv.SHAPE] = state.timeline.shape.name
    if is_a(previous, Request):
        before = tracked_of(previous)  # type: ignore[arg-type]  # a handle by the line above
        previous = None if before is None else before.writer.span.get_span_context()
    arrival = state.arrival_of(arrived_at_ns)
    writer.start(
        claiming,
        conditions.labels,
        attributes,
        link=_propagation.link_to(previous),
        start=state.anchor.monotonic if arrival is None else arrival,
    )


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
        except Exception:  # noqa: BLE001  # what is no request may raise anything; a batch is never broken off
            _token_of(handle)
    # A comparison instead of a call, since an engine comes past here in every iteration.
    if now >= runtime().sweep_due:
        runtime().housekeep()


def _step_at(requests: Iterable[Request], at_ns: AtNs, counts: Iterable[int | None] | None) -> None:
    for handle, count in zip(requests, repeat(1) if counts is None else counts, strict=False):
        if is_a(handle, Request):
            handle.token(count, 0, at_ns)
    runtime().housekeep()


def _token_of(handle: object) -> None:
    """Mark a token the slow way: the first one, one after the end, or no request at all."""
    if is_a(handle, Request):
        handle.token()  # type: ignore[attr-defined]  # a handle by the line above
