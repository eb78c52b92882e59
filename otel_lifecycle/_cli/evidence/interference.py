"""Delays of requests beyond their own work: waits, stalls and company, summed over a set of requests."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from typing import Any, Final

from otel_lifecycle import semconv
from otel_lifecycle._cli.requests.model import SeenRequest

QUEUE: Final = {
    "preprocessing": semconv.QUEUE_BESIDE_PREPROCESSING,
    "prefill": semconv.QUEUE_BESIDE_PREFILL,
    "decode": semconv.QUEUE_BESIDE_DECODE,
    "idle": semconv.QUEUE_IDLE,
}
STALLS: Final = {
    "prefill": semconv.STALL_PREFILL,
    "preemption": semconv.STALL_PREEMPTION,
    "unexplained": semconv.STALL_UNEXPLAINED,
}
COMPANY: Final = {"prefill": semconv.COMPANY_PREFILL, "decode": semconv.COMPANY_DECODE}
MAX_CULPRITS: Final = 4096
"""Requests that delayed others, kept one by one; beyond it, those with the least time are dropped."""
# A table for people; all links are in the spans.
SHOWN: Final = 5

Culprit = tuple[str, str, str]
"""Trace, span and request id."""


class InterferenceSums:
    """Sums of the waits and stalls of many requests by their causes; a request without a split adds nothing."""

    def __init__(self) -> None:
        self._queue: dict[str, float] = defaultdict(float)
        self._stalls: dict[str, float] = defaultdict(float)
        self._company: dict[str, float] = defaultdict(float)
        self._counts: Counter[str] = Counter()
        self._causes: Counter[str] = Counter()
        self._longest = 0.0
        self._culprits: dict[Culprit, float] = defaultdict(float)
        self._victims: Counter[Culprit] = Counter()

    def add(self, request: SeenRequest) -> None:
        """Take a request into account."""
        told = request.attributes
        # The processor writes all parts of the split or none; one of them shows that there is a split.
        if QUEUE["idle"] in told and "queue_wait" in request.seconds:
            self._counts["queue"] += 1
            self._queue["wait"] += request.seconds["queue_wait"]
            self._sum(self._queue, told, QUEUE)
        if semconv.STALL_COUNT in told:
            self._add_stalls(request)
        for stage, key in COMPANY.items():
            if isinstance(told.get(key), (int, float)):
                self._counts[f"company_{stage}"] += 1
                self._company[stage] += told[key]
        if semconv.BOTTLENECK_CAUSE in told:
            self._causes[f"{request.bottleneck}: {told[semconv.BOTTLENECK_CAUSE]}"] += 1
        self._counts["incomplete"] += told.get(semconv.INTERFERENCE_COMPLETE) is False
        for link in request.links:
            self._blame(link.trace_id, link.span_id, link.attributes)

    def _add_stalls(self, request: SeenRequest) -> None:
        told = request.attributes
        count = told[semconv.STALL_COUNT]
        self._counts["stalls"] += 1
        # A count of 0 is evidence: the request was watched and had no stall.
        self._counts["stalled"] += bool(count)
        self._stalls["count"] += count
        self._stalls["decode_time"] += request.seconds.get("decode_time", 0.0)
        self._sum(self._stalls, told, {"time": semconv.STALL_TIME, **STALLS})
        self._longest = max(self._longest, float(told.get(semconv.STALL_MAX) or 0.0))

    @staticmethod
    def _sum(into: dict[str, float], told: Any, names: dict[str, str]) -> None:
        for name, key in names.items():
            into[name] += told.get(key) or 0.0

    def _blame(self, trace_id: str, span_id: str, told: Any) -> None:
        time = told.get(semconv.LINK_TIME)
        # Links of other libraries have no time; they blame nobody.
        if not isinstance(time, (int, float)) or isinstance(time, bool):
            return
        culprit = (trace_id, span_id, str(told.get(semconv.REQUEST_ID) or ""))
        self._culprits[culprit] += time
        self._victims[culprit] += 1
        # Cut at twice the size, so that the sort is rare.
        if len(self._culprits) > 2 * MAX_CULPRITS:
            kept = self._most(MAX_CULPRITS)
            self._victims = Counter({name: self._victims[name] for name, _ in kept})
            self._culprits = defaultdict(float, kept)

    def _most(self, number: int) -> list[tuple[Culprit, float]]:
        return heapq.nlargest(number, self._culprits.items(), key=lambda item: item[1])

    def describe(self) -> dict[str, Any]:
        """Return the sums as plain data: seconds, and the number of requests behind each of them."""
        decode, counts = self._stalls["decode_time"], self._counts
        return {
            "queue": {
                "count": counts["queue"],
                **{name: float(self._queue[name]) for name in ("wait", *QUEUE)},
            },
            "stalls": {
                "count": counts["stalls"],
                "stalled_requests": counts["stalled"],
                "stalls": int(self._stalls["count"]),
                **{name: float(self._stalls[name]) for name in ("time", *STALLS, "decode_time")},
                "longest": self._longest if counts["stalled"] else None,
                "prefill_share_of_decode": self._stalls["prefill"] / decode if decode else None,
            },
            "company": {
                stage: {
                    "count": counts[f"company_{stage}"],
                    "mean": self._company[stage] / counts[f"company_{stage}"] if counts[f"company_{stage}"] else None,
                }
                for stage in COMPANY
            },
            "causes": dict(self._causes.most_common()),
            "incomplete": counts["incomplete"],
            "culprits": [
                {"trace_id": name[0], "span_id": name[1], "request": name[2] or None, "time": time}
                | {"requests": self._victims[name]}
                for name, time in self._most(SHOWN)
            ],
        }
