"""What every figure of ``otel-lifecycle report --json`` is in the metrics: a sum over series, or one over another.

The same row is asked of Prometheus, as an expression, and of the processes, over the points that they said themselves.
A path walks through the report's JSON: keys, and in a list the ``name``, ``stage`` or ``phase`` of an item;
``…/sum`` is a distribution's mean times its count.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from otel_lifecycle import semconv
from otel_lifecycle.semconv import Metric

Labels = Mapping[str, str]
"""Attribute -> a pattern that its whole value matches; the empty one matches its absence, too."""
Points = Sequence[Mapping[str, Any]]

LIVE: Final[Labels] = {semconv.TRAFFIC: ""}
"""The report's figures, the recording rules and these rows are of live traffic; warm-up stands apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """A sum over the series of a metric: of values, or of a histogram's counts or sums; 0 of none."""

    metric: Metric
    part: str = "value"
    where: Labels = field(default_factory=dict)

    def selector(self, where: Labels, part: str = "") -> str:
        """Return its series as PromQL selects them; ``part``: another part of the same histogram."""
        labels = {**LIVE, **self.where, **where}
        matchers = ", ".join(f'{name.replace(".", "_")}=~"{pattern}"' for name, pattern in labels.items())
        return f"{prometheus_name(self.metric, part or self.part)}{{{matchers}}}"

    def of(self, points: Points, where: Labels) -> float:
        """Return it of the points of processes."""
        labels = {**LIVE, **self.where, **where}
        return math.fsum(
            point[self.part]
            for point in points
            if point["metric"] == self.metric.name
            and all(re.fullmatch(pattern, label(point["labels"].get(name, ""))) for name, pattern in labels.items())
        )


@dataclass(frozen=True, slots=True)
class Ratio:
    """One total over another; None over nothing."""

    above: Total
    below: Total


Figure = Total | Ratio


def prometheus_name(metric: Metric, part: str) -> str:
    """Return the name under which Prometheus has a metric that came by OTLP."""
    unit = {"s": "_seconds", "By": "_bytes", "1": "_ratio"}.get(metric.unit, "")
    suffix = f"_{part}" if metric.kind == "histogram" else "_total" if metric.kind == "counter" else ""
    return metric.name.replace(".", "_") + unit + suffix


def label(value: Any) -> str:
    """Return an attribute as a label has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


# ------------------------------------------------------------------------------------------------------ the rows

ENDED: Final = "completed|cancelled|timed_out|failed"
REFUSED: Final = "queue_full|rate_limited"


def requests(outcome: str, **where: str) -> Total:
    """Requests that ended in one of those ways."""
    return Total(metric=semconv.REQUESTS, where={semconv.OUTCOME: outcome, **where})


def tokens(direction: str) -> Total:
    """Tokens of one direction."""
    return Total(metric=semconv.TOKENS, where={semconv.TOKEN_DIRECTION: direction})


def objective(met: str) -> Total:
    """Requests whose whole SLO was judged so."""
    return Total(metric=semconv.SLO_RESULTS, where={semconv.SLO_OBJECTIVE: "all", semconv.SLO_MET: met})


def distribution(path: str, metric: Metric, **where: str) -> dict[str, Figure]:
    """Count and mean of a histogram."""
    count, total = (Total(metric=metric, part=part, where=where) for part in ("count", "sum"))
    return {f"{path}/count": count, f"{path}/mean": Ratio(total, count)}


LATENCIES: Final = {
    "ttft": semconv.TIME_TO_FIRST_TOKEN,
    "tpot": semconv.TIME_PER_OUTPUT_TOKEN,
    "e2e": semconv.REQUEST_DURATION,
}
OUTCOMES: Final[dict[str, Figure]] = {
    "total": requests(".*"),
    "terminated": requests(ENDED),
    **{outcome: requests(outcome) for outcome in semconv.OUTCOMES},
}
BOTTLENECKS: Final[dict[str, Figure]] = {
    name: requests("completed", **{semconv.BOTTLENECK: name})
    for name in ("queue", "preprocessing", "prefill", "decode", "mixed")
}
KINDS_ON_SPANS: Final = ("illegal_transition", "non_monotonic_time", "missing_terminal")
"""Of the violations in the load; one after the end comes when the span has gone, and only the metrics know of it."""

ONE_CHOICE: Final[Labels] = {semconv.GEN_AI_REQUEST_MODEL: "smollm2|qwen3"}
"""The models of the load whose answers have one choice; the report does not see the gaps of several."""
GAPS: Final = distribution("latency/itl", semconv.INTER_TOKEN_LATENCY, **ONE_CHOICE)
WASTE: Final[dict[str, Figure]] = {
    "output/wasted_tokens": tokens("wasted"),
    **distribution("output/cancel_lag", semconv.CANCEL_LAG),
}

WHOLE: Final[dict[str, Figure]] = {
    **{f"requests/{name}": figure for name, figure in OUTCOMES.items()},
    "output/terminated": requests(ENDED),
    "output/success_rate": Ratio(requests("completed"), requests(ENDED)),
    "output/rejected": requests("failed", **{semconv.ERROR_TYPE: REFUSED}),
    "output/rejection_rate": Ratio(requests("failed", **{semconv.ERROR_TYPE: REFUSED}), requests(ENDED)),
    "output/timed_out": requests("timed_out"),
    "output/timeout_rate": Ratio(requests("timed_out"), requests(ENDED)),
    "abnormal/count": requests("cancelled|timed_out|failed|incomplete"),
    "conditions/measured/input_tokens/sum": tokens("input"),
    "output/output_tokens": tokens("output"),
    **WASTE,
    **{path: row for name in LATENCIES for path, row in distribution(f"latency/{name}", LATENCIES[name]).items()},
    **GAPS,
    "stages/completed": requests("completed"),
    "stages/bottleneck_count": requests("completed", **{semconv.BOTTLENECK: ".+"}),
    **{f"stages/bottlenecks/{name}": figure for name, figure in BOTTLENECKS.items()},
    "stages/preemptions": Total(metric=semconv.PREEMPTION_COUNT),
    "output/slo_judged": objective("true|false"),
    "output/goodput": Ratio(objective("true"), objective("true|false")),
    **{
        f"output/breaches/{kind}": Total(metric=semconv.TRANSITION_VIOLATIONS, where={semconv.VIOLATION_KIND: kind})
        for kind in KINDS_ON_SPANS
    },
    "startup/phases/load_model/count": Total(
        metric=semconv.STARTUP_DURATION, part="count", where={semconv.STARTUP_PHASE: "load_model"}
    ),
}
"""Of the whole run."""

BY_OUTCOME: Final[dict[str, Figure]] = {
    "total": requests(".*"),
    **{path: row for name in LATENCIES for path, row in distribution(name, LATENCIES[name]).items()},
}
"""Of a group of the run, however it is grouped."""

GROUP: Final[dict[str, Figure]] = {
    **BY_OUTCOME,
    **OUTCOMES,
    "success_rate": Ratio(requests("completed"), requests(ENDED)),
    "input_tokens/sum": tokens("input"),
    "output_tokens/sum": tokens("output"),
    **{f"bottlenecks/{name}": figure for name, figure in BOTTLENECKS.items()},
}
"""Of a group by model or by replica."""

STEADY: Final[dict[str, Figure]] = {
    path: row
    for stage in ("queue", "preprocessing", "prefill", "decode")
    for path, row in distribution(f"stages/rows/{stage}", semconv.STAGE_DURATION, **{semconv.STAGE: stage}).items()
}
"""Stage times, where every request completed with every boundary: the report has those of such requests only."""


# ------------------------------------------------------------------------------------------------------ the report


NAMES: Final = ("name", "stage", "phase")


def told(document: Any, path: str) -> Any:
    """Return what a report says under a path; 0 for a key that a count of kinds does not have."""
    for key in path.split("/"):
        if isinstance(document, list):
            document = next(item for item in document if key in {item.get(name) for name in NAMES})
        elif key == "sum":
            document = 0 if document["mean"] is None else document["mean"] * document["count"]
        else:
            document = document.get(key, 0)
    return document


def bounds(buckets: Iterable[tuple[float, float]], q: float) -> tuple[float, float]:
    """Return between which bucket edges both the report's and Prometheus' q-quantile must lie.

    ``buckets``: (upper edge, samples up to it).  Of n samples in order, from 0, the report interpolates between number
    floor((n - 1) q) and the next one.  The sample of Prometheus' rank q n is one of these two, and it interpolates
    within that sample's bucket.  So both lie between the lower edge of the first's bucket and the upper edge of the
    second's.
    """
    ordered = [(0.0, 0.0), *sorted(buckets)]
    samples = ordered[-1][1]
    first = math.floor((samples - 1) * q)
    second = min(first + 1, samples - 1)
    lower = next(edge for (edge, _), (_, upto) in pairwise(ordered) if upto > first)
    upper = next(edge for edge, upto in ordered if upto > second)
    return lower, upper
