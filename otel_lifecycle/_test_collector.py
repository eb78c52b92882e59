"""Collects the request spans of a test from whatever tracer provider the server uses."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider

from otel_lifecycle import semconv
from otel_lifecycle._core.verdict import assess
from otel_lifecycle._foreign import is_lifecycle, read_foreign, rebuild
from otel_lifecycle._runtime import claim_in
from otel_lifecycle.processor import LifecycleSpanProcessor


class Collector(SpanProcessor):
    """Keeps the requests that begin and end while it is switched on.

    The SDK cannot remove a processor, so one collector stays with a provider and is off between tests.  A request that
    no lifecycle processor of the provider takes is judged by the collector's own.
    """

    def __init__(self) -> None:
        # Without metrics: the server's own processor may record the same requests.
        self._judge = LifecycleSpanProcessor(meter_provider=NoOpMeterProvider())
        # Spans begin and end on the server's threads, while the test reads on its own.
        self._lock = Lock()
        self._open: set[int] = set()
        self._ended: list[ReadableSpan] = []
        self._on = False

    @property
    def open(self) -> int:
        """How many requests have begun and not ended."""
        with self._lock:
            return len(self._open)

    def ended(self) -> list[ReadableSpan]:
        """Return the spans of the requests that have ended."""
        with self._lock:
            return list(self._ended)

    def switch(self, *, on: bool) -> None:
        """Forget everything, and collect from now on or no more."""
        with self._lock:
            self._open.clear()
            self._ended.clear()
            self._on = on

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Note a request that begins."""
        # The request carries its claim in the context; any other span is not ours to keep.
        claim = claim_in(parent_context)
        if not self._on or claim is None:
            return
        if not claim:
            self._judge.on_start(span, parent_context)
        with self._lock:
            self._open.add(span.context.span_id)

    def on_end(self, span: ReadableSpan) -> None:
        """Keep a request that has ended; one of another library with its attribution."""
        if not self._on:
            return
        if is_lifecycle(span) and semconv.OUTCOME not in (span.attributes or {}):
            finished, violations = read_foreign(span)
            span = rebuild(span, finished, assess(finished), violations, compat=None)
        with self._lock:
            self._open.discard(span.context.span_id)
            if semconv.OUTCOME in (span.attributes or {}):
                self._ended.append(span)


# By provider, because a test may set up its own; weak, so that such a provider is freed after its test.
_collectors: Final[weakref.WeakKeyDictionary[TracerProvider, Collector]] = weakref.WeakKeyDictionary()


@contextmanager
def collecting() -> Iterator[Collector]:
    """Collect from the global tracer provider; an SDK provider that exports nothing is set where there is none."""
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        # It has nothing to flush, so it needs no exit hook.
        provider = TracerProvider(shutdown_on_exit=False)
        trace.set_tracer_provider(provider)
    collector = _collectors.get(provider)
    if collector is None:
        collector = _collectors[provider] = Collector()
        provider.add_span_processor(collector)
    collector.switch(on=True)
    try:
        yield collector
    finally:
        collector.switch(on=False)
