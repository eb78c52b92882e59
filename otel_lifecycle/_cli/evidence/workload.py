"""A whole workload: the requests to judge, those kept apart, and the same by class and by group."""

from __future__ import annotations

import gc
import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from otel_lifecycle import semconv
from otel_lifecycle._cli.evidence.classes import CLASS_LENGTH, length_class
from otel_lifecycle._cli.evidence.evidence import GROUP_SAMPLE, SAMPLE, YEAR, Evidence
from otel_lifecycle._cli.evidence.resources import Resources
from otel_lifecycle._cli.evidence.rows import row_of
from otel_lifecycle._cli.requests.from_span import is_request, request_of
from otel_lifecycle._cli.requests.model import SeenRequest
from otel_lifecycle._cli.requests.troubles import note_troubles
from otel_lifecycle._cli.sources.spans import Item, Span
from otel_lifecycle._cli.sources.tally import ReadingTally
from otel_lifecycle._core.slo import Slo

# Each group has an own sample and sketches; the rest is grouped as ``_OTHER``.
MAX_GROUPS: Final = 50
MAX_ABNORMAL: Final = 1000
MAX_ALIKE: Final = 50
"""Abnormal requests kept one by one for each outcome, stage and reason; their numbers stay exact."""
SLOWEST: Final = 10

OPEN: Final = (-1, 2**63 - 1)
"""The two ends of a window that are open, in epoch nanoseconds: nothing lies beyond them."""
UNTOLD: Final = "(none)"
"""The group of the requests without the attribute."""

SHORT: Final = {
    "model": semconv.GEN_AI_REQUEST_MODEL,
    "operation": semconv.GEN_AI_OPERATION_NAME,
    "provider": semconv.GEN_AI_PROVIDER_NAME,
    "backend": semconv.BACKEND_NAME,
    "revision": semconv.MODEL_REVISION,
    "dtype": semconv.MODEL_DTYPE,
    "workload": semconv.WORKLOAD,
    "batch_size": semconv.BATCH_SIZE,
    "concurrency": semconv.CONCURRENCY,
    "cache_policy": semconv.CACHE_POLICY,
    "traffic": semconv.TRAFFIC,
    "outcome": semconv.OUTCOME,
    "bottleneck": semconv.BOTTLENECK,
    "service": "service.name",
    "version": "service.version",
}
"""Short names of attributes to group by; any other key is the attribute itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSettings:
    """How a workload is gathered.

    ``window``: only requests whose end lies in it, in epoch nanoseconds (after start, up to and with end); an end of it
    that is one of :data:`OPEN` is the first arrival or the last end of the requests kept.
    """

    group_by: str | None = None
    slo: Slo | None = None
    window: tuple[int, int] | None = None
    long_context: int = CLASS_LENGTH
    shape: str = "default"
    threshold: float = 0.45
    sample: int = SAMPLE


@dataclass(slots=True)
class Workload:
    """The requests of some sources.

    ``main``: live requests that are whole.  ``apart``: other traffic, by its name.  ``roles``: the two halves of a
    disaggregated request, of which only stage times count.  ``classes`` and ``groups`` are parts of ``main``.
    """

    settings: WorkloadSettings
    tally: ReadingTally
    main: Evidence
    apart: dict[str, Evidence] = field(default_factory=dict)
    roles: dict[str, Evidence] = field(default_factory=dict)
    classes: dict[str, Evidence] = field(default_factory=dict)
    groups: dict[str, Evidence] = field(default_factory=dict)
    resources: Resources = field(default_factory=Resources)
    abnormal: list[SeenRequest] = field(default_factory=list)
    outside_window: int = 0
    _alike: Counter[tuple[str, str | None, str | None]] = field(default_factory=Counter)
    _slowest: list[tuple[float, int, SeenRequest]] = field(default_factory=list)

    def add(self, request: SeenRequest) -> None:
        """Count a request in the part that it belongs to."""
        window = self.settings.window
        if window is not None and not window[0] < request.end_ns <= window[1]:
            self.outside_window += 1
            self._pass_by(request, window)
            return
        if request.role != "whole":
            self._part(self.roles, request.role).add(request)
        elif request.traffic != "live":
            self._part(self.apart, request.traffic).add(request)
        else:
            self._live(request)

    def _pass_by(self, request: SeenRequest, window: tuple[int, int]) -> None:
        """Count a request that ended after the window as in flight up to the window's end."""
        # The limit of a year keeps a wrong clock from stretching the timeline.
        over = window[1] < request.end_ns < window[1] + YEAR * 1e9
        if request.start_ns < window[1] and over and request.role == "whole" and request.traffic == "live":
            self.main.add_passing(request.start_ns * 1e-9, window[1] * 1e-9)

    def _live(self, request: SeenRequest) -> None:
        # Built once and shared by the whole, the class and the group.
        row = row_of(request)
        self.main.add(request, row)
        label = request.attributes.get(semconv.WORKLOAD)
        name = str(label) if label else length_class(request, self.settings.long_context)
        self._part(self.classes, name).add(request, row)
        key = self.settings.group_by
        if key is not None:
            group = str(request.attributes.get(SHORT.get(key, key), UNTOLD))
            self._part(self.groups, group).add(request, row)
        if request.outcome != "completed":
            self._keep_abnormal(request)
        self._keep_slow(request)

    def _part(self, parts: dict[str, Evidence], name: str) -> Evidence:
        if name not in parts and len(parts) >= MAX_GROUPS:
            name = semconv.OTHER
        if name not in parts:
            parts[name] = Evidence(GROUP_SAMPLE, self.settings.slo, part=True)
        return parts[name]

    def _keep_abnormal(self, request: SeenRequest) -> None:
        kind = (request.outcome, request.failure_stage, request.reason)
        self._alike[kind] += 1
        if self._alike[kind] <= MAX_ALIKE and len(self.abnormal) < MAX_ABNORMAL:
            self.abnormal.append(request)

    def _keep_slow(self, request: SeenRequest) -> None:
        seconds = request.seconds.get("e2e")
        if seconds is None or request.outcome != "completed":
            return
        # The running total breaks ties: requests do not compare.
        entry = (seconds, self.main.total, request)
        if len(self._slowest) < SLOWEST:
            heapq.heappush(self._slowest, entry)
        elif seconds > self._slowest[0][0]:
            heapq.heapreplace(self._slowest, entry)

    @property
    def slowest(self) -> list[SeenRequest]:
        """The completed requests with the longest E2E, the longest first."""
        return [request for _, _, request in sorted(self._slowest, reverse=True)]

    def conclude(self) -> None:
        """Add up what is pending everywhere; to be called once, after the last request."""
        for evidence in (
            self.main,
            *(e for parts in (self.apart, self.roles, self.classes, self.groups) for e in parts.values()),
        ):
            evidence.flush()
        # What the server stated at its start holds for each of its requests.
        self.main.conditions.adopt(self.resources.launch, self.main.total)
        self.tally.read["requests"] = self.main.total
        self.tally.add("no_end", number=self.main.outcomes["incomplete"])
        self.tally.add("clock_skew", number=self.main.wrong_clocks)
        self.tally.notes.setdefault("clock_skew", []).extend(map(_far_from_the_rest, self.main.wrong_times))


def _far_from_the_rest(times: tuple[float, float]) -> str:
    start, end = (np.datetime64(int(time), "s") for time in times)
    return f"a request from {start}Z to {end}Z, far from all others; not in the window"


def gather(items: Iterable[Item], settings: WorkloadSettings, tally: ReadingTally) -> Workload:
    """Return the workload of some spans and metric points."""
    workload = Workload(settings, tally, Evidence(settings.sample, settings.slo), resources=Resources(settings.window))
    with _no_cycles():
        _gather(items, workload)
    workload.conclude()
    return workload


@contextmanager
def _no_cycles() -> Iterator[None]:
    """Turn the cycle collector off: it takes a third of the time, and none of the millions of values is in a cycle."""
    enabled = gc.isenabled()
    # Restored afterwards: this may run inside another program's process.
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _gather(items: Iterable[Item], workload: Workload) -> None:
    settings, tally = workload.settings, workload.tally
    for item in items:
        if not isinstance(item, Span):
            workload.resources.add(item)
        elif is_request(item):
            note_troubles(item, tally)
            workload.add(request_of(item, settings.shape, settings.threshold))
        elif semconv.STARTUP_PHASE in item.attributes:
            workload.resources.add_phase(item)
        else:
            tally.add("other_spans")
