"""A floor does what the package does, or its limit would say nothing."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

from otel_lifecycle import semconv
from tests.benchmarks.floors import EndByHand
from tests.benchmarks.requests import mark
from tests.benchmarks.subjects import Lifecycle


def shown(spans: list[ReadableSpan]) -> list[Any]:
    """Return what a trace shows of spans, without values."""
    return [
        (span.name, sorted(set(span.attributes or {}) - {semconv.GEN_AI_PROVIDER_NAME}), [e.name for e in span.events])
        for span in spans
    ]


def test_the_end_by_hand_leaves_what_a_request_leaves() -> None:
    """The same spans in the same order, with the same attributes and events, and the figures of its own times."""
    package, by_hand = Lifecycle(), EndByHand()
    request = package.open()
    mark(request, 30)
    request.complete()
    left = by_hand.open(30)
    by_hand.end(left)
    assert shown(by_hand.kept.spans) == shown(package.kept.spans)
    told = by_hand.kept.spans[-1].attributes or {}
    assert told[semconv.ITL_COUNT] == 30
    assert told[semconv.E2E] == (left.bounds[-1] - left.bounds[0]) / 1e9
    assert [span.end_time for span in by_hand.kept.spans][-2:] == [left.bounds[-1] + left.offset] * 2
