"""Any number of runs in one table, and which of them no other run beats in both throughput and latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from otel_lifecycle._analysis.figures import NONE, distributions
from otel_lifecycle._analysis.workload import Workload

SCHEMA_VERSION: Final = 1
"""The version of a sweep as JSON; it grows when a key is removed or gets another meaning."""
LATENCIES: Final = ("ttft", "tpot", "e2e_completed")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRun:
    """One run: times in seconds, throughputs per second; None is unknown.

    ``front``: no other run has at least its throughput at no more than its p95 of E2E.
    """

    source: str
    requests: int
    success_rate: float | None
    request_throughput: float | None
    token_throughput: float | None
    ttft_p95: float | None
    tpot_p95: float | None
    e2e_completed_p95: float | None
    front: bool = False


def sweep_run(source: str, workload: Workload) -> SweepRun:
    """Return the figures of a run."""
    found = distributions(workload.table, LATENCIES).get("", {})
    p95 = {f"{name}_p95": found.get(name, NONE)["p95"] for name in LATENCIES}
    (tokens,) = workload.table.one("SELECT sum(output_tokens)::BIGINT FROM live")
    seconds, completed = workload.seconds, workload.outcomes["completed"]
    return SweepRun(
        source=source,
        requests=workload.total,
        success_rate=completed / workload.terminated if workload.terminated else None,
        request_throughput=completed / seconds if seconds else None,
        token_throughput=tokens / seconds if seconds and tokens is not None else None,
        **p95,
    )


def throughput_of(runs: Sequence[SweepRun]) -> str:
    """Return the throughput by which the runs are compared: of tokens where every run tells them."""
    return "token_throughput" if all(run.token_throughput is not None for run in runs) else "request_throughput"


def with_front(runs: Sequence[SweepRun]) -> list[SweepRun]:
    """Return the runs with the Pareto front of throughput against the p95 of E2E marked."""
    name = throughput_of(runs)
    places = [(getattr(run, name), run.e2e_completed_p95) for run in runs]
    return [replace(run, front=_unbeaten(place, places)) for run, place in zip(runs, places, strict=True)]


def _unbeaten(place: tuple[float | None, float | None], places: Sequence[tuple[float | None, float | None]]) -> bool:
    throughput, latency = place
    if throughput is None or latency is None:
        return False
    return not any(
        other[0] is not None
        and other[1] is not None
        and other[0] >= throughput
        and other[1] <= latency
        # An equal run beats nobody, or two equal ones would both be off the front.
        and other != place
        for other in places
    )


def plain(runs: Sequence[SweepRun]) -> dict[str, Any]:
    """Return a sweep as plain data."""
    return {
        "schema_version": SCHEMA_VERSION,
        "throughput": throughput_of(runs),
        "runs": [{"name": run.source, **asdict(run)} for run in runs],
    }
