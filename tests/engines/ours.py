"""What the drop-in exported during a lane: its request spans and the newest value of each metric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from tests.support.otlp_receiver import OtlpReceiver
from tests.support.plain import Point, Span

OUTCOME: Final = "inference.outcome"


class Exported:
    """The request spans of one service, by request id and by trace."""

    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver
        self.requests = [span for span in receiver.spans() if OUTCOME in span["attributes"]]

    def outcomes(self) -> Counter[str]:
        """How many requests ended how."""
        return Counter(str(span["attributes"][OUTCOME]) for span in self.requests)

    def by_trace(self) -> dict[str, Span]:
        """The request span of each trace."""
        return {span["trace_id"]: span for span in self.requests}

    def by_id(self) -> dict[str, Span]:
        """The request span of each request id."""
        return {str(span["attributes"].get("inference.request.id")): span for span in self.requests}

    def total(self, metric: str, wanted: Mapping[str, object] | None = None) -> float:
        """The sum over the points of a counter, or the count of a histogram's samples; of those with the attributes."""
        return sum(_value(point) for point in self._points(metric, wanted or {}))

    def seconds(self, metric: str) -> float:
        """The sum of a histogram's samples."""
        return sum(float(point["sum"] or 0.0) for point in self._points(metric, {}))

    def sum_of(self, name: str, spans: Iterable[Span] | None = None) -> float:
        """The sum of a span attribute over all requests that have it."""
        return sum(float(span["attributes"].get(name, 0)) for span in (self.requests if spans is None else spans))

    def _points(self, metric: str, wanted: Mapping[str, object]) -> list[Point]:
        points = self._receiver.points(metric)
        return [point for point in points if all(point["attributes"].get(key) == wanted[key] for key in wanted)]


def _value(point: Point) -> float:
    value: Any = point["count"] if point["type"] == "histogram" else point["value"]
    return float(value or 0)


def wait_until_exported(receiver: OtlpReceiver, requests: Callable[[], int], seconds: float = 60.0) -> None:
    """Return when as many request spans have arrived as the lane expects; AssertionError after the time."""
    receiver.wait_for(lambda: len(Exported(receiver).requests) >= requests(), seconds)
