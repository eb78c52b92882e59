"""Opening requests, finding the current one, and marking a whole batch."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from time import perf_counter_ns

from opentelemetry.context import Context, get_current
from opentelemetry.trace import TracerProvider, get_current_span

from otel_lifecycle import _propagation, _registry, semconv
from otel_lifecycle._core.lifecycle import get_shape
from otel_lifecycle._log import say
from otel_lifecycle._request import conditions, scope
from otel_lifecycle._request.clock import NOW, Anchor, AtNs, anchor
from otel_lifecycle._request.finish import OpenRecord
from otel_lifecycle._request.handle import NO_REQUEST, NoRequest, Request
from otel_lifecycle._request.references import refer_to
from otel_lifecycle._request.tracing import source_of, span_kind
from otel_lifecycle.errors import InvalidValue


def request(
    *,
    model: str | None = None,
    operation: str = "chat",
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
    arrived_at_ns: AtNs = NOW,
    deadline: float | None = None,
    shape: str = "default",
    tracer_provider: TracerProvider | None = None,
) -> Request:
    """Open a request: it has arrived.  Returns its handle, which is also a context manager.

    ``arrived_at_ns``: when it entered the process, epoch nanoseconds (None: unknown; left out: now).  ``deadline``:
    seconds after arrival from which a cancellation is a timeout.  ``previous``: the attempt before, its handle or its
    carrier.  ``role``: whole, or prefill or decode for a part of a disaggregated request, which feeds stage durations
    only.  ``traffic``: live, or what the metrics shall be told apart by (warmup, say).  The rest are conditions; what
    is None is absent.

    Raises ConfigurationError for a shape or role that does not exist.  A condition that cannot be is an
    ``invalid_value`` violation.
    """
    values = conditions.given(
        {
            "model": model,
            "operation": operation,
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
            "role": conditions.check_role(role),
            "traffic": traffic,
            "workload": workload,
            "deadline": deadline,
        }
    )
    return open_request(
        values, shape=shape, arrived_at_ns=arrived_at_ns, previous=previous, tracer_provider=tracer_provider
    )


def open_request(
    values: Mapping[str, object],
    *,
    shape: str = "default",
    arrived_at_ns: AtNs = NOW,
    previous: object = None,
    tracer_provider: TracerProvider | None = None,
    started: Anchor | None = None,
    parent: Context | None = None,
    unmarked: bool = False,
) -> Request:
    """Open a request of given conditions; ``started`` and ``parent`` where it arrived earlier, in another context.

    ``unmarked``: whoever opened it marks no boundaries; the first output passes those that nobody marked.
    """
    the_shape = get_shape(shape)
    _registry.housekeep()
    _registry.warn_after_fork()
    source = source_of(tracer_provider)
    context = get_current() if parent is None else parent
    labels = conditions.RequestLabels()
    record = OpenRecord(the_shape, anchor() if started is None else started, source, labels)
    wrong = _read(record, values)
    claim = _registry.Claim()
    try:
        _start_span(record, _registry.with_claim(context, claim), context, arrived_at_ns, previous)
    except Exception as error:  # noqa: BLE001  # a sampler's or another processor's; the server's request must not fail for it
        say("start_span", "a request span could not be started", level=logging.ERROR, error=error)
        return NO_REQUEST
    record.assessor = claim.assessor
    if claim.assessor is not None:
        _registry.seen_with(source.provider(), claim.assessor)
    elif not record.span.is_recording():
        record.assessor = _registry.assessor_for(source.provider())
        if record.assessor is None:
            return NO_REQUEST
    handle = Request(record)
    record.reference = refer_to(handle)
    if record.assessor is not None:
        record.checker.strict = record.assessor.strict
    record.unmarked = record.passes = unmarked
    record.arrive(arrived_at_ns)
    record.unmarked = unmarked
    record.ticket = _registry.open_request(record)
    for invalid in wrong:
        record.violate(invalid)
    return handle


def _read(record: OpenRecord, values: Mapping[str, object]) -> list[InvalidValue]:
    """Read the conditions into the record; return what is wrong with them."""
    wrong = []
    for name, value in values.items():
        if type(value) is str and value == conditions.USUAL.get(name):
            continue
        try:
            if name in conditions.USAGE:
                record.usage[name] = conditions.read_whole(name, value)
            elif name == "deadline":
                record.deadline = conditions.read_deadline(value)
            else:
                attribute, read = conditions.read_condition(name, value)
                record.attributes[attribute] = read
                if name in conditions.LABELS:
                    setattr(record.labels, name, read)
        except InvalidValue as error:
            wrong.append(error)
    return wrong


def _start_span(record: OpenRecord, claiming: Context, context: Context, arrived_at_ns: AtNs, previous: object) -> None:
    """Start the request span at arrival; at the moment of the call where arrival is unknown or impossible."""
    labels, attributes = record.labels, record.attributes
    attributes[semconv.GEN_AI_OPERATION_NAME] = labels.operation
    attributes[semconv.GEN_AI_PROVIDER_NAME] = labels.provider or semconv.OTHER
    if record.timeline.shape.name != "default":
        attributes[semconv.SHAPE] = record.timeline.shape.name
    if isinstance(previous, Request):
        previous = None if isinstance(previous, NoRequest) else previous._record.span.get_span_context()
    link = _propagation.link_to(previous)
    arrival = record.arrival_of(arrived_at_ns)
    record.parent_context = context
    record.span = record.source.tracer.start_span(
        record.source.span_name(labels.operation, labels.model),
        claiming,
        kind=span_kind(get_current_span(context).get_span_context()),
        attributes=attributes,
        links=() if link is None else (link,),
        start_time=(record.anchor.monotonic if arrival is None else arrival) + record.offset,
    )


def current() -> Request:
    """Return the current request; outside of one, the shared no-op handle."""
    return scope.in_context() or NO_REQUEST


def stage(name: str) -> scope.CurrentStage:
    """A block or a decorator spent in a stage of the current request: ``queue``, ``preprocessing`` or ``prefill``."""
    return scope.CurrentStage(name, current)


def step(requests: Iterable[Request]) -> None:
    """Mark one token for each request of a batch, all at one reading of the clock."""
    now = perf_counter_ns()
    for handle in requests:
        try:
            handle._ts.append(now)  # type: ignore[union-attr]  # None outside decode: the miss is caught
        except AttributeError:
            _token_of(handle)
    if now >= _registry.sweep_due():
        _registry.housekeep()


def _token_of(handle: object) -> None:
    """Mark a token the slow way: the first one, one after the end, or no request at all."""
    if isinstance(handle, Request):
        handle.token()
