"""Whether two runs are runs of the same workload: every condition in which they differ is named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import stats

from otel_lifecycle._analysis.arrivals import BURSTY
from otel_lifecycle._analysis.comparison.sides import Floats, Side
from otel_lifecycle._analysis.stated import KEYS
from otel_lifecycle._table.text import number, share, shorten

MIX: Final = 0.1
"""Two mixes differ where more than a tenth of the requests would have to change (total variation distance)."""
SHIFT: Final = 0.1
"""Two distributions of lengths differ where they lie this far apart (Kolmogorov-Smirnov) beyond chance."""
# Strict, because a dozen conditions are tested and each false alarm refuses a comparison.
CHANCE: Final = 0.001
RATE: Final = 0.2
"""Two rates of arrival differ by more than a fifth."""
CLUMPS: Final = 3.0
"""Two runs with the same rate differ if one clumps this many times more than the other."""
CACHE: Final = 0.1
"""Two shares of cached input differ by more than ten points."""
IDENTITY: Final = frozenset({"service", "service version"})
"""What identifies the two sides; it is not a condition of the workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A condition in which the sides differ, and what it was on each."""

    condition: str
    baseline: str
    candidate: str


def differences(baseline: Side, candidate: Side) -> list[Difference]:
    """Return every condition in which two sides differ."""
    found = [_stated(name, baseline, candidate) for name in KEYS if name not in IDENTITY]
    found += [
        _lengths("input tokens", "input_tokens", baseline, candidate, completed=False),
        # Completed requests only: a request that was cut off is a result of the run, not a condition.
        _lengths("output tokens", "output_tokens", baseline, candidate, completed=True),
        _cached(baseline, candidate),
        _classes(baseline, candidate),
        *_arrivals(baseline, candidate),
    ]
    return [difference for difference in found if difference is not None]


def _stated(name: str, baseline: Side, candidate: Side) -> Difference | None:
    left, right = (_counts(side, name) for side in (baseline, candidate))
    if not left and not right:
        return None
    # Stated on one side only is a difference: the value of the other side is unknown.
    if left and right and not _apart(left, right):
        return None
    return Difference(condition=name, baseline=_text(left), candidate=_text(right))


def _counts(side: Side, name: str) -> Counter[str]:
    total: Counter[str] = Counter()
    for run in side.runs:
        total.update(run.stated.get(name, {}))
    return total


def _apart(left: Mapping[str, int], right: Mapping[str, int]) -> bool:
    """Whether two mixes differ by more than :data:`MIX`, and by more than chance explains."""
    a, b = sum(left.values()), sum(right.values())
    distance = 0.5 * sum(abs(left.get(key, 0) / a - right.get(key, 0) / b) for key in {*left, *right})
    # Size first: with many requests any small shift is significant.
    if distance <= MIX:
        return False
    keys = sorted({*left, *right})
    table = np.array([[left.get(key, 0) for key in keys], [right.get(key, 0) for key in keys]])
    return len(keys) == 1 or float(stats.chi2_contingency(table).pvalue) < CHANCE


def _text(counts: Mapping[str, int]) -> str:
    if not counts:
        return "not stated"
    total, ordered = sum(counts.values()), sorted(counts.items(), key=lambda item: -item[1])
    if len(ordered) == 1:
        return shorten(ordered[0][0])
    return ", ".join(f"{shorten(value, 24)} {share(count / total)}" for value, count in ordered[:3])


def _lengths(name: str, column: str, baseline: Side, candidate: Side, *, completed: bool) -> Difference | None:
    left, right = (_known(side, column, completed) for side in (baseline, candidate))
    if not len(left) and not len(right):
        return None
    if len(left) and len(right):
        found = stats.ks_2samp(left, right)
        if found.statistic < SHIFT or found.pvalue >= CHANCE:
            return None
    return Difference(condition=name, baseline=_quantiles(left), candidate=_quantiles(right))


def _known(side: Side, column: str, completed: bool) -> Floats:
    values = side.column(column)
    chosen = ~np.isnan(values)
    if completed:
        chosen &= side.column("completed") == 1
    return values[chosen]


def _quantiles(values: Floats) -> str:
    if not len(values):
        return "not stated"
    p50, p95 = np.quantile(values, [0.5, 0.95])
    return f"p50 {number(float(p50))}, p95 {number(float(p95))} ({len(values)} requests)"


def _cached(baseline: Side, candidate: Side) -> Difference | None:
    left, right = _cached_share(baseline), _cached_share(candidate)
    # Unknown on one side is not a difference here: many servers never report cached tokens.
    if left is None or right is None or abs(left - right) <= CACHE:
        return None
    return Difference(condition="cached input", baseline=share(left), candidate=share(right))


def _cached_share(side: Side) -> float | None:
    cached, length = side.column("cached_tokens"), side.column("input_tokens")
    known = ~np.isnan(cached) & ~np.isnan(length)
    total = float(length[known].sum())
    return float(cached[known].sum()) / total if total else None


def _classes(baseline: Side, candidate: Side) -> Difference | None:
    left, right = (_class_counts(side) for side in (baseline, candidate))
    if not left or not right or not _apart(left, right):
        return None
    return Difference(condition="workload classes", baseline=_text(left), candidate=_text(right))


def _class_counts(side: Side) -> Counter[str]:
    """Count requests by label or length; how they arrived is a condition of its own."""
    total: Counter[str] = Counter()
    for run in side.runs:
        total.update(run.classes)
    return total


def _arrivals(baseline: Side, candidate: Side) -> list[Difference | None]:
    left, right = (_patterns(side) for side in (baseline, candidate))
    # A batch has no rate: all its requests arrive together.
    if not left or not right or left == right == ["at once"]:
        return []
    if left == right == ["closed loop"]:
        # The rate of a closed loop is a result of the server's speed; its number of clients is a condition.
        return [_level(baseline, candidate)]
    rate = _rate(baseline, candidate)
    return [rate if rate is not None else _clumps(baseline, candidate)]


def _clumps(baseline: Side, candidate: Side) -> Difference | None:
    """At the same rate: whether one side's arrivals come in clumps and the other's do not."""
    left, right = (
        [told for run in side.runs if (told := run.arrivals.dispersion) is not None] for side in (baseline, candidate)
    )
    if not left or not right:
        return None
    one, other = float(np.mean(left)), float(np.mean(right))
    if max(one, other) < BURSTY or max(one, other) < CLUMPS * min(one, other):
        return None
    text = "variance over mean {:.1f} ({})"
    return Difference(
        condition="arrivals",
        baseline=text.format(one, ", ".join(_patterns(baseline))),
        candidate=text.format(other, ", ".join(_patterns(candidate))),
    )


def _patterns(side: Side) -> list[str]:
    told = [run.arrivals.pattern for run in side.runs]
    return sorted({pattern for pattern in told if pattern != "too few to tell"})


def _level(baseline: Side, candidate: Side) -> Difference | None:
    left, right = (float(np.median(side.column("level"))) for side in (baseline, candidate))
    # At least one client: with few clients a tenth of them is less than one.
    if abs(left - right) <= max(1.0, SHIFT * max(left, right)):
        return None
    return Difference(condition="clients in flight", baseline=number(left), candidate=number(right))


def _rate(baseline: Side, candidate: Side) -> Difference | None:
    left, right = (_mean_rate(side) for side in (baseline, candidate))
    if left is None or right is None:
        return None
    # Two runs of n independent arrivals can differ by 2 / sqrt(n) of their rate by chance.
    chance = 4 / min(baseline.total, candidate.total) ** 0.5
    if abs(left - right) <= max(RATE, chance) * max(left, right):
        return None
    return Difference(
        condition="rate of arrivals",
        baseline=f"{number(left)} per second ({', '.join(_patterns(baseline))})",
        candidate=f"{number(right)} per second ({', '.join(_patterns(candidate))})",
    )


def _mean_rate(side: Side) -> float | None:
    rates = [run.total / run.seconds_of_arrivals for run in side.runs if run.seconds_of_arrivals]
    return float(np.mean(rates)) if rates else None
