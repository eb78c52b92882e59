"""From a request's report to its durations.

How it works.  A duration is the difference of two timestamps of the report.  It is None where either is unknown, or
where the two come from clocks that are proven apart.  The shape says which timestamps bound a stage.  Every interval is
gross: preempted time lies inside the stage it interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, cast

from otel_lifecycle._core.lifecycle import get_shape
from otel_lifecycle._core.tokens import Time, total

METRIC_NAMES = (
    "queue_wait",
    "preprocessing",
    "prefill",
    "ttft",
    "tpot",
    "decode_time",
    "token_span",
    "e2e",
    "streamed_tokens",
)


class RequestMetrics(TypedDict):
    """The nine figures of one request, each None where it is not known."""

    queue_wait: Time | None
    preprocessing: Time | None
    prefill: Time | None
    ttft: Time | None
    tpot: Time | None
    decode_time: Time | None
    token_span: Time | None
    e2e: Time | None
    streamed_tokens: int | None


def compute_request_metrics(report: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the durations of one request, in the unit of its report.

    ``report`` is what :func:`replay_request_events` returns; its first four keys alone mean the default shape, nothing
    preempted, and one token for each of ``token_times``.  Returns ``queue_wait, preprocessing, prefill, ttft, tpot,
    decode_time, token_span, e2e, streamed_tokens``.  A duration is None where a time that bounds it is unknown, or
    where the two were given by clocks that are proven apart; ``streamed_tokens`` where a count is unknown, or where
    what was streamed were chunks of unknown size.
    """
    return dict(request_metrics(report))


def request_metrics(report: Mapping[str, Any]) -> RequestMetrics:
    """Compute the same as :func:`compute_request_metrics`, typed for the layers above."""
    shape = get_shape(report.get("shape", "default"))
    metrics: dict[str, Any] = dict.fromkeys(METRIC_NAMES)
    for stage in shape.stages:
        # In pooling only a completion ends the prefill. Any other end cuts it off, and its length is not prefill time.
        finished = stage.leave != "complete" or report["status"] == "completed"
        if finished:
            metrics[stage.metric] = _between(report, stage.entered, stage.left)
    metrics["e2e"] = _between(report, "arrival", "terminal")
    # Outputs in another unit are not tokens: what is named after tokens stays None.
    if "unit" in report:
        return cast("RequestMetrics", metrics)
    metrics["ttft"] = time_to_first(report)
    if shape.streams:
        choices = _choices(report)
        produced = _produced(report, choices)
        metrics["streamed_tokens"] = None if "streamed_chunks" in report else produced
        metrics["token_span"] = _token_span(report, choices)
        metrics["tpot"] = _tpot(report, choices, produced)
    return cast("RequestMetrics", metrics)


def time_to_first(report: Mapping[str, Any]) -> Time | None:
    """Return the time from arrival to the first output, of whatever unit."""
    return _between(report, "arrival", "first_token")


def _between(report: Mapping[str, Any], start: str, end: str) -> Time | None:
    times = report["timestamps"]
    earlier, later = times.get(start), times.get(end)
    if earlier is None or later is None:
        return None
    # The two clocks are proven apart: the difference of their times is not a duration.
    if "foreign" in report and (start in report["foreign"]) != (end in report["foreign"]):
        return None
    return later - earlier


def _choices(report: Mapping[str, Any]) -> Mapping[int, Mapping[str, Any]]:
    choices: Mapping[int, Mapping[str, Any]] | None = report.get("choices")
    if choices is not None:
        return choices
    # A report may hold the four basic keys alone; the list of token times is then all there is to count.
    times = report["token_times"]
    return {0: {"first": times[0], "last": times[-1], "tokens": len(times)}} if times else {}


def _produced(report: Mapping[str, Any], choices: Mapping[int, Mapping[str, Any]]) -> int | None:
    if "output_tokens" in report:
        count: int | None = report["output_tokens"]
        return count
    return total(choice["tokens"] for choice in choices.values())


def _timed(report: Mapping[str, Any]) -> bool:
    """Whether the time of the first token is known; without it the times of the others are a part only."""
    return report["timestamps"].get("first_token") is not None


def _span(choice: Mapping[str, Any]) -> Time | None:
    return None if choice["first"] is None or choice["last"] is None else choice["last"] - choice["first"]


def _token_span(report: Mapping[str, Any], choices: Mapping[int, Mapping[str, Any]]) -> Time | None:
    foreign = report.get("foreign_choices", ())
    if 0 < len(foreign) < len(choices):
        # Two clocks that are proven apart timed them: no difference between the two is a duration.
        return None
    ends = [time for choice in choices.values() for time in (choice["first"], choice["last"])]
    return max(ends) - min(ends) if ends and _timed(report) and None not in ends else None


def _tpot(report: Mapping[str, Any], choices: Mapping[int, Mapping[str, Any]], tokens: int | None) -> Any:
    """The choices' spans summed, over their gaps summed; of one choice that is (last - first) / (n - 1).

    ``tokens`` is the marks' own count, or the usage figure where a mark of unknown size left that unknown.
    """
    # Each choice has one gap fewer than it has tokens.
    gaps = 0 if tokens is None else tokens - len(choices)
    if gaps < 1 or not _timed(report):
        return None
    # A choice of one token has no gap to give, so its times need not be known either.
    spans: list[Any] = [_span(choice) for choice in choices.values() if choice["tokens"] != 1]
    return None if None in spans else sum(spans) / gaps
