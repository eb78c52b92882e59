"""Request spans that engines write themselves: durations as attributes, and no lifecycle events.

| engine | span | what it tells |
|---|---|---|
| vLLM | `llm_request` | `gen_ai.latency.*` in seconds, `gen_ai.usage.prompt_tokens` and `.completion_tokens` |
| SGLang | the root of a request | the same names; its prefill includes the scheduler's queue, and no queue is told |
| Dynamo | `http-request`, `generate` | `ttft_ms`, `avg_itl_ms`, `input_tokens`, `output_tokens`, often as text |

Each becomes a span with lifecycle events, which the one judge then judges.  What an engine does not tell is an event at
an unknown time, so the stage has no duration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from otel_lifecycle import semconv
from otel_lifecycle._table.sources.spans import ReadEvent, Span

E2E: Final = "gen_ai.latency.e2e"
TTFT_MS: Final = "ttft_ms"
MARKS: Final = frozenset({E2E, TTFT_MS})
"""Attributes by which such a span is known."""

_TTFT: Final = "gen_ai.latency.time_to_first_token"
_QUEUE: Final = "gen_ai.latency.time_in_queue"
_PREFILL: Final = "gen_ai.latency.time_in_model_prefill"
_DECODE: Final = "gen_ai.latency.time_in_model_decode"
_NAMES: Final = {
    "gen_ai.usage.prompt_tokens": semconv.GEN_AI_USAGE_INPUT_TOKENS,
    "gen_ai.usage.completion_tokens": semconv.GEN_AI_USAGE_OUTPUT_TOKENS,
    "gen_ai.usage.cached_tokens": semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS,
    "gen_ai.response.model": semconv.GEN_AI_REQUEST_MODEL,
    "gen_ai.request.id": semconv.REQUEST_ID,
    "input_tokens": semconv.GEN_AI_USAGE_INPUT_TOKENS,
    "output_tokens": semconv.GEN_AI_USAGE_OUTPUT_TOKENS,
    "model": semconv.GEN_AI_REQUEST_MODEL,
    "request_id": semconv.REQUEST_ID,
}
_COUNTS: Final = frozenset({semconv.GEN_AI_USAGE_INPUT_TOKENS, semconv.GEN_AI_USAGE_OUTPUT_TOKENS})
_DYNAMO: Final = frozenset({"http-request", "generate", "engine.generate"})
_ROUNDING: Final = 0.002
"""Seconds by which durations of two clocks may disagree before their parts are taken for unknown."""


def with_lifecycle(span: Span) -> Span:
    """Return an engine's request span with lifecycle events; any other span as it is."""
    attributes = span.attributes
    # A verdict of ours, or events of the lifecycle, say more than the durations do.
    if semconv.OUTCOME in attributes or any(event.name == "arrive" for event in span.events):
        return span
    if E2E in attributes:
        events = _of_latencies(span)
    elif TTFT_MS in attributes and span.name in _DYNAMO:
        events = _of_dynamo(span)
    else:
        return span
    told = tuple(events)
    return replace(span, attributes=_renamed(span), events=told) if told else span


def _of_latencies(span: Span) -> Iterator[ReadEvent]:
    """Yield the events of a span of vLLM or SGLang."""
    told = {key: _seconds(span.attributes.get(key)) for key in (E2E, _TTFT, _QUEUE, _PREFILL, _DECODE)}
    e2e, first, queue, prefill = told[E2E], told[_TTFT], told[_QUEUE], told[_PREFILL]
    if e2e is None:
        return
    yield _event(span, "arrive", 0.0)
    before = None if first is None or queue is None or prefill is None else first - queue - prefill
    known = before is not None and before >= -_ROUNDING
    # The engine's frontend prepares the input before it queues the request.
    yield _event(span, "input_ready", max(before, 0.0) if known and before is not None else None)
    yield _event(
        span, "admit", max(first - prefill, 0.0) if known and first is not None and prefill is not None else None
    )
    yield from _tokens(span, first, None if first is None or told[_DECODE] is None else first + told[_DECODE], e2e)
    yield _event(span, _end(span), e2e)


def _of_dynamo(span: Span) -> Iterator[ReadEvent]:
    first, gap = (_milliseconds(span.attributes.get(key)) for key in (TTFT_MS, "avg_itl_ms"))
    count, e2e = _count(span.attributes.get("output_tokens")), (span.end_ns - span.start_ns) * 1e-9
    if first is None or e2e < 0:
        return
    yield _event(span, "arrive", 0.0)
    yield _event(span, "input_ready", None)
    yield _event(span, "admit", None)
    last = None if gap is None or count is None else first + gap * max(count - 1, 0)
    yield from _tokens(span, min(first, e2e), last, e2e)
    yield _event(span, _end(span), e2e)


def _tokens(span: Span, first: float | None, last: float | None, end: float) -> Iterator[ReadEvent]:
    if first is None:
        yield _event(span, "output", None)
        return
    yield _event(span, "first_token", min(first, end))
    told = span.attributes
    count = _count(told.get("gen_ai.usage.completion_tokens", told.get("output_tokens")))
    # Tokens of several choices come beside each other, and their sum tells no time per token.
    if last is not None and count is not None and count > 1 and told.get("gen_ai.request.n", 1) == 1:
        yield _event(span, "token", min(last, end), {"count": count - 1})


def _end(span: Span) -> str:
    reasons = span.attributes.get(semconv.GEN_AI_RESPONSE_FINISH_REASONS, span.attributes.get("finish_reason", ""))
    aborted = "abort" in str(reasons) or str(span.attributes.get("cancelled", "")).lower() == "true"
    return "cancel" if aborted else "complete"


def _event(span: Span, name: str, offset: float | None, told: Mapping[str, Any] | None = None) -> ReadEvent:
    if offset is None:
        return ReadEvent(name, span.start_ns, {semconv.TIME_KNOWN: False})
    return ReadEvent(name, span.start_ns + round(offset * 1e9), told or {})


def _renamed(span: Span) -> dict[str, Any]:
    """Return the attributes under the names of the convention; the engine's name is that of its scope."""
    found: dict[str, Any] = {semconv.SHAPE: "preprocess_first"}
    engine = span.scope.partition(".")[0]
    if engine:
        found[semconv.BACKEND_NAME] = engine
    for key, value in span.attributes.items():
        name = _NAMES.get(key, key)
        told = _count(value) if name in _COUNTS else value
        # The convention's own name wins where a span has both.
        if told is not None and (name == key or name not in span.attributes):
            found[name] = told
    return found


def _seconds(value: Any) -> float | None:
    """Return a duration; a text is a number, too, because tracing libraries of Rust write it so."""
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        return None
    return seconds if 0 <= seconds < 1e7 else None


def _milliseconds(value: Any) -> float | None:
    found = _seconds(value)
    return None if found is None else found / 1000


def _count(value: Any) -> int | None:
    found = _seconds(value)
    return None if found is None else int(found)
