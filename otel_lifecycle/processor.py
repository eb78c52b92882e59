"""The span processor that checks lifecycles and turns finished requests into metrics and attribution.

Requests of the API are handed to it by their handle, right before the span ends, because the SDK freezes a span before
any processor may still write to it.  Foreign spans, those of the plain OpenTelemetry API or another library that carry
an ``arrive`` event, are assessed at their end and handed on rebuilt:
``LifecycleSpanProcessor(BatchSpanProcessor(exporter))``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry import metrics
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import NonRecordingSpan, set_span_in_context

from otel_lifecycle import semconv
from otel_lifecycle._core.attributes import AttributeValue
from otel_lifecycle._core.labels import RequestLabels
from otel_lifecycle._core.outcome import DOMINANCE_THRESHOLD, check_threshold
from otel_lifecycle._core.slo import Slo
from otel_lifecycle._core.usual import Rules, UsualEnd, judge_usual, met_objectives
from otel_lifecycle._core.usual_attributes import UsualNotes, usual_attributes
from otel_lifecycle._core.verdict import Finished, Verdict, assess
from otel_lifecycle._foreign import is_lifecycle, is_ours, read_foreign, rebuild, with_interference
from otel_lifecycle._instruments.instruments import instruments_of
from otel_lifecycle._log import logger, say
from otel_lifecycle._runtime import claim_in, runtime, take
from otel_lifecycle._sdk_traces import HandingOn
from otel_lifecycle.errors import ConfigurationError

COMPAT = (None, "vllm")


def _check_flags(**flags: object) -> None:
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ConfigurationError(f"{name} is {flag!r:.80}; it must be True or False")


def _check(next: object, meter_provider: object, slo: object, compat: object) -> None:  # noqa: A002  # as the argument
    """ConfigurationError for what cannot be."""
    if next is not None and not all(callable(getattr(next, name, None)) for name in ("on_start", "on_end")):
        raise ConfigurationError(f"next is {next!r:.80}; it must be a span processor")
    if meter_provider is not None and not callable(getattr(meter_provider, "get_meter", None)):
        raise ConfigurationError(f"meter_provider is {meter_provider!r:.80}; it must be a MeterProvider")
    if slo is not None and not isinstance(slo, Slo):
        raise ConfigurationError(f"slo is {slo!r:.80}; it must be an otel_lifecycle.Slo")
    if compat not in COMPAT:
        raise ConfigurationError(f"compat is {compat!r:.80}; it must be None or 'vllm'")


class LifecycleSpanProcessor(HandingOn):
    """Checks every transition; records metrics; writes attribution.

    ``next``: a processor that every span is handed on to, foreign ones with their attribution.  ``meter_provider``:
    where the metrics go; the global one by default.  ``dominance_threshold``: the share, in (0, 1], from which a stage
    is the bottleneck.  ``slo``: objectives to judge each request by.  ``strict``: a violation raises at the call (for
    tests and development).  ``token_times``: the offset of every token goes onto the span.  ``compat='vllm'``: that
    engine's ``gen_ai.latency.*`` attributes too.  ``interference=False``: does not work out which other requests held
    one.  ``tenant_metrics=True``: metrics carry the tenant, 64 of them, then ``_OTHER``.  ``gen_ai_metrics=False``:
    leaves the ``gen_ai.server.*`` metrics out, whose figures the ``inference.*`` metrics have, too.
    ``gen_ai_usage=False``: leaves the ``gen_ai.usage.*`` attributes out, which a client's span has as well.

    Raises ConfigurationError for an argument that makes no sense; nothing in it raises afterwards.
    """

    def __init__(
        self,
        next: SpanProcessor | None = None,  # noqa: A002  # the contract's name
        *,
        meter_provider: metrics.MeterProvider | None = None,
        dominance_threshold: float = DOMINANCE_THRESHOLD,
        slo: Slo | None = None,
        strict: bool = False,
        token_times: bool = False,
        compat: str | None = None,
        interference: bool = True,
        tenant_metrics: bool = False,
        gen_ai_metrics: bool = True,
        gen_ai_usage: bool = True,
    ) -> None:
        _check(next, meter_provider, slo, compat)
        _check_flags(strict=strict, token_times=token_times, interference=interference, tenant_metrics=tenant_metrics)
        _check_flags(gen_ai_metrics=gen_ai_metrics, gen_ai_usage=gen_ai_usage)
        # `configure()` sets it: only the providers that it installs are exchanged in a forked child.
        self.survives_fork = False
        self.strict = strict
        self.token_times = token_times
        self.compat = compat
        self.interference = interference
        self.gen_ai_metrics = gen_ai_metrics
        self.gen_ai_usage = gen_ai_usage
        self._next = next
        self.rules = Rules(check_threshold(dominance_threshold), slo, gen_ai_metrics)
        self._shut_down = False
        self._warned: set[str] = set()
        self._instruments = instruments_of(metrics.get_meter_provider() if meter_provider is None else meter_provider)
        self._instruments.attach(self, tenants=tenant_metrics)
        self.take_usual = self._instruments.take_usual
        runtime().add_processor(self)

    @property
    def behind(self) -> SpanProcessor | None:
        """The processor that every span is handed on to."""
        return self._next

    @property
    def marks_only_claims(self) -> bool:
        """Whether its class is this one: a subclass may do anything at the start of a span."""
        return type(self) is LifecycleSpanProcessor

    # The SDK's side.  These run inside the server's own calls of start_span() and end().

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Take the request whose span this is, unless another processor has."""
        claim = claim_in(parent_context)
        if claim is not None and not self._shut_down and not take(claim, self):
            self.warn_twice()
        if self._next is not None:
            self._guard("on_start", self._next.on_start, span, parent_context)

    def hand_on(self, hook: str, *arguments: Any, **named: Any) -> Any:
        """Hand on a hook that is not used here: at an end the span is frozen before any hook runs (#5614)."""
        further = getattr(self._next, hook, None)
        return None if further is None else self._guard(hook, further, *arguments, **named)

    def on_end(self, span: ReadableSpan) -> None:
        """Assess a foreign span; hand every span on."""
        if not self._shut_down and not is_ours(span):
            span = self._guard("on_end", self._assess_foreign, span) or span
        if self._next is not None:
            self._guard("on_end", self._next.on_end, span)

    def shutdown(self) -> None:
        """End every open request as cancelled, reason ``shutdown``; then shut the next processor down."""
        if self._shut_down:
            return
        # First, so that open requests end while their spans can still be exported and their metrics folded.
        self.end_requests()
        self._guard("shutdown", self._instruments.fold)
        self._shut_down = True
        runtime().remove_processor(self)
        if self._next is not None:
            self._guard("shutdown", self._next.shutdown)

    def end_requests(self) -> None:
        """End every open request as cancelled, reason ``shutdown``; nothing else is shut."""
        self._guard("shutdown", runtime().end_all, self)
        self._instruments.retire(self)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """End the requests whose handle is gone, then flush the next processor."""
        self._guard("force_flush", runtime().housekeep, now=True)
        self._guard("force_flush", self._instruments.fold)
        if self._next is None:
            return True
        return bool(self._guard("force_flush", self._next.force_flush, timeout_millis))

    # The handle's side.  These run at the end of a request, before its span ends.

    def assess(self, finished: Finished, context: Context | None) -> Verdict:
        """Judge a finished request and record its metrics."""
        verdict = assess(finished, threshold=self.rules.threshold, slo=self.rules.slo)
        self._guard("record", self._instruments.finished, finished, verdict, context, convention=self.gen_ai_metrics)
        return verdict

    def judge_usual(self, end: UsualEnd, notes: UsualNotes) -> dict[str, AttributeValue]:
        """Judge a usual request and record its metrics; return the attributes of its span."""
        rules = self.rules
        verdict = judge_usual(end, rules.threshold)
        self._guard("record", self._instruments.judged, end, verdict)
        met = None if rules.slo is None else met_objectives(rules.slo, verdict)
        return usual_attributes(end, verdict, notes, met, usage=self.gen_ai_usage)

    def record_violation(self, kind: str, labels: RequestLabels) -> None:
        """Count a violation that came after the span was closed."""
        self._guard("record", self._instruments.single, semconv.TRANSITION_VIOLATIONS, 1, labels, kind)

    def record_wasted(self, tokens: int, labels: RequestLabels, context: Context | None) -> None:
        """Count tokens produced after the end."""
        if labels.role in ("whole", "part") and labels.unit is None:
            self._guard("record", self._instruments.single, semconv.TOKENS, tokens, labels, "wasted", context=context)

    def record_lag(self, lag_ns: int, labels: RequestLabels, context: Context | None) -> None:
        """Record how long after the end the last token was produced."""
        if labels.role == "whole":
            self._guard("record", self._instruments.single, semconv.CANCEL_LAG, lag_ns / 1e9, labels, context=context)

    def record_gaps(self, gaps: Sequence[int], labels: RequestLabels, context: Context | None) -> None:
        """Record gaps, in nanoseconds, of a stream that goes on."""
        self._guard("record", self._instruments.gaps, gaps, labels, context)

    def record_step(
        self, kind: str, seconds: float, requests: int, labels: RequestLabels, context: Context | None
    ) -> None:
        """Record an iteration of an engine."""
        for metric, value in ((semconv.STEP_DURATION, seconds), (semconv.STEP_REQUESTS, requests)):
            self._guard("record", self._instruments.single, metric, value, labels, kind, context=context)

    def record_startup(self, phase: str, seconds: float, model: str | None, context: Context | None) -> None:
        """Record a cold-start phase."""
        self._guard("record", self._instruments.startup, phase, seconds, model, context)

    def warn_twice(self) -> None:
        """Say, once, that a request was seen by two processors."""
        self._warn("twice", "a request is seen by two lifecycle processors; the first one counts it, once")

    # Foreign spans.

    def _assess_foreign(self, span: ReadableSpan) -> ReadableSpan:
        if not is_lifecycle(span):
            return span
        finished, violations = read_foreign(span)
        # Two processors may see the span: each rebuilds it for its own `next`, and one counts it.
        first = runtime().first_sight(span.context.trace_id, span.context.span_id)
        if first and self.interference:
            finished = with_interference(span, finished)
        verdict = assess(finished, threshold=self.rules.threshold, slo=self.rules.slo)
        if first:
            # The span's identity and nothing else, or the exemplar would be whatever is current here.
            context = set_span_in_context(NonRecordingSpan(span.context), Context())
            self._instruments.finished(finished, verdict, context, convention=self.gen_ai_metrics)
        if self._next is None:
            self._warn("bare", "a foreign lifecycle span gets no attribution: LifecycleSpanProcessor has no next")
            return span
        return rebuild(span, finished, verdict, violations, compat=self.compat, usage=self.gen_ai_usage)

    # Safety.

    def _guard(self, where: str, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call; what it raises is logged and goes no further: these calls are made in span.end() of the server."""
        try:
            # A hook's exception would come out of `span.end()` and stop the processors behind this one (#5624).
            return call(*arguments, **named)
        except Exception as error:  # noqa: BLE001  # telemetry never breaks its host
            say(f"processor.{where}", f"{where} failed", level=logging.ERROR, error=error)
            return None

    def _warn(self, what: str, message: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            logger.warning("%s", message)
