"""One set of requests, reduced to numbers in bounded memory."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from otel_lifecycle._cli.evidence.conditions import Conditions
from otel_lifecycle._cli.evidence.in_flight import InFlight
from otel_lifecycle._cli.evidence.interference import InterferenceSums
from otel_lifecycle._cli.evidence.rows import INDEX, REJECTIONS, SKETCHED, TERMINATED, Row, Sample, row_of
from otel_lifecycle._cli.evidence.sketch import Floats, Sketch, summary
from otel_lifecycle._cli.evidence.timeline import EARLIEST, WorkloadTimeline
from otel_lifecycle._cli.requests.model import STAGE_METRIC, STAGES, SeenRequest
from otel_lifecycle._cli.sources.tally import MAX_NOTES
from otel_lifecycle._core.slo import WHOLE, Slo

# numpy's cost per call is spread over the batch; smaller ones spend their time in calls.
BATCH: Final = 4096
"""Rows gathered before they are added up together."""
SAMPLE: Final = 50_000
"""Rows kept one by one: up to so many requests every quantile is exact."""
GROUP_SAMPLE: Final = 5_000
"""The same for one group among many."""

YEAR: Final = 366 * 86_400.0
"""Seconds from the middle of a run, and from all that is known of it, beyond which a time is a wrong clock."""


class Evidence:
    """The evidence of one set of requests; every figure of it comes with its number of samples.

    ``capacity``: rows kept one by one.  A ``part`` of a whole leaves the conditions to the whole.
    """

    def __init__(self, capacity: int = SAMPLE, slo: Slo | None = None, *, part: bool = False) -> None:
        self.outcomes: Counter[str] = Counter()
        self.abnormal: Counter[tuple[str, str, str]] = Counter()
        self.bottlenecks: Counter[str] = Counter()
        self.breaches: Counter[str] = Counter()
        self.notes: Counter[str] = Counter()
        self.share_sums: Counter[str] = Counter()
        self.shared = 0
        self.slo_judged = 0
        self.slo_met = 0
        self.first_arrival: float | None = None
        self.last_end: float | None = None
        self.wrong_clocks = 0
        self.wrong_times: list[tuple[float, float]] = []
        self.conditions = Conditions()
        self.timeline = WorkloadTimeline()
        self.in_flight = InFlight()
        self.interference = InterferenceSums()
        self.sample = Sample(capacity)
        self.gaps = Sketch()
        self._slo = slo
        self._part = part
        self._sketches = {name: Sketch() for name in SKETCHED}
        self._stages = {stage: Sketch() for stage in STAGES}
        self._completed_e2e = Sketch()
        self._pending: list[Row] = []
        self._pending_passing: list[tuple[float, float]] = []
        self._pending_gaps: list[float] = []

    def add(self, request: SeenRequest, row: Row | None = None) -> None:
        """Take a request into account; ``row``: its row, where that is known already."""
        self.outcomes[request.outcome] += 1
        if request.outcome != "completed":
            self.abnormal[request.outcome, request.failure_stage or "-", request.reason or "-"] += 1
        elif request.bottleneck is not None:
            self.bottlenecks[request.bottleneck] += 1
        if request.shares:
            self.shared += 1
            self.share_sums.update(request.shares)
        self._judge(request)
        self._note(request)
        if not self._part:
            self.conditions.add(request)
            self.interference.add(request)
        self._pending.append(row_of(request) if row is None else row)
        if request.gaps:
            self._pending_gaps.extend(request.gaps)
            self.notes["requests_with_gaps"] += 1
        if len(self._pending) >= BATCH:
            self.flush()

    def add_passing(self, start: float, end: float) -> None:
        """Count a request as in flight from one time to another, and as nothing else: it ended after the window."""
        self._pending_passing.append((start, end))
        if len(self._pending_passing) >= BATCH:
            self.flush()

    def _judge(self, request: SeenRequest) -> None:
        met = request.slo_met
        if request.outcome not in TERMINATED:
            return
        if self._slo is not None:
            met = self._slo.judge(request.seconds, completed=request.outcome == "completed")[WHOLE]
        # No objective could be judged: the request counts neither as met nor as missed.
        if met is not None:
            self.slo_judged += 1
            self.slo_met += met

    def _note(self, request: SeenRequest) -> None:
        notes = self.notes
        if request.legal is False:
            notes["illegal"] += 1
        for breach in request.breaches:
            self.breaches[breach.kind] += 1
        if request.preemptions:
            notes["preemptions"] += request.preemptions
            notes["preempted_requests"] += 1
        if request.wasted:
            notes["wasted_tokens"] += request.wasted
            notes["wasting_requests"] += 1
        if request.disconnected and request.outcome == "completed":
            notes["completed_without_client"] += 1

    def flush(self) -> None:
        """Add up what is pending; to be called once more after the last request."""
        if self._pending:
            batch: Floats = np.array(self._pending, dtype=np.float64)
            self._pending.clear()
            for name, sketch in self._sketches.items():
                sketch.add(batch[:, INDEX[name]])
            completed = batch[:, INDEX["completed"]] == 1
            self._completed_e2e.add(batch[completed, INDEX["e2e"]])
            # The sketches above take no instants, so rows with a wrong clock count there like all others.
            told = self._extend(batch)
            # Only requests with every boundary, or the stages would be means of different requests.
            whole = batch[batch[:, INDEX["whole_breakdown"]] == 1]
            for stage, sketch in self._stages.items():
                sketch.add(whole[:, INDEX[STAGE_METRIC[stage]]])
            self.timeline.add(told)
            self._fly(told[:, INDEX["start"]], told[:, INDEX["end"]])
            # After _extend, which moves wrong instants: the sample feeds the search for patterns of arrival.
            self.sample.add(batch)
        if self._pending_passing:
            passing: Floats = np.array(self._pending_passing)
            self._pending_passing.clear()
            self.timeline.add_passing(passing[:, 0], passing[:, 1])
            self._fly(passing[:, 0], passing[:, 1])
        if self._pending_gaps:
            self.gaps.add(np.array(self._pending_gaps))
            self._pending_gaps.clear()

    def _fly(self, starts: Floats, ends: Floats) -> None:
        # Groups show no peak, and 16 bytes a request for each of them would add up.
        if not self._part:
            self.in_flight.add(starts, ends)

    def _extend(self, batch: Floats) -> Floats:
        """Extend the span from the first arrival to the last end by the batch's plausible times; return their rows.

        The other rows of the batch are moved into that span: one wrong clock would else make all others arrive at once.
        """
        starts, ends = batch[:, INDEX["start"]], batch[:, INDEX["end"]]
        believed = starts > EARLIEST
        if believed.any():
            low, high = self._reach(starts[believed], ends[believed])
            believed &= (starts >= low) & (ends <= high)
        told = batch[believed]
        if len(told):
            first, last = float(told[:, INDEX["start"]].min()), float(told[:, INDEX["end"]].max())
            self.first_arrival = first if self.first_arrival is None else min(first, self.first_arrival)
            self.last_end = last if self.last_end is None else max(last, self.last_end)
        self._set_right(batch, ~believed)
        return told

    def _set_right(self, batch: Floats, wrong: NDArray[np.bool_]) -> None:
        rows = np.flatnonzero(wrong)
        if not len(rows):
            return
        cells = np.ix_(rows, np.array([INDEX["start"], INDEX["end"]]))
        self.wrong_clocks += len(rows)
        self.wrong_times += [(start, end) for start, end in batch[cells].tolist()][: MAX_NOTES - len(self.wrong_times)]
        if self.first_arrival is not None:
            batch[cells] = np.clip(batch[cells], self.first_arrival, self.last_end)

    def _reach(self, starts: Floats, ends: Floats) -> tuple[float, float]:
        """Return how early a start and how late an end may be: a year beyond the middle and beyond what is known."""
        # The lower of two middles, so that of two requests the one whose end lies in the far future is the wrong one.
        middle = float(np.quantile(np.concatenate([ends, self.sample.column("end")]), 0.5, method="lower"))
        first = min(middle, middle if self.first_arrival is None else self.first_arrival)
        last = max(middle, middle if self.last_end is None else self.last_end)
        return first - YEAR, last + YEAR

    @property
    def total(self) -> int:
        """All requests, ended or not."""
        return sum(self.outcomes.values())

    @property
    def terminated(self) -> int:
        """Requests with a terminal event: the denominator of every rate."""
        return sum(self.outcomes[outcome] for outcome in TERMINATED)

    @property
    def exact(self) -> bool:
        """Whether quantiles are of all samples, not of the sketch."""
        return self.sample.complete

    def distribution(self, name: str) -> dict[str, Any]:
        """Return count, mean, p50, p95, p99 and max of a column."""
        return summary(self._sketches[name], self.sample.column(name) if self.exact else None)

    def stage(self, stage: str) -> dict[str, Any]:
        """Return the same of a stage's time, over the completed requests with complete boundaries only."""
        whole = self.sample.rows()[self.sample.column("whole_breakdown") == 1]
        return summary(self._stages[stage], whole[:, INDEX[STAGE_METRIC[stage]]] if self.exact else None)

    def completed_e2e(self) -> dict[str, Any]:
        """Return the same of E2E over the completed requests only: a quick failure is not a quick answer."""
        rows = self.sample.rows()
        done = rows[rows[:, INDEX["completed"]] == 1]
        return summary(self._completed_e2e, done[:, INDEX["e2e"]] if self.exact else None)

    def sketch(self, name: str) -> Sketch:
        """Return the sketch of a column, or of ``e2e_completed``."""
        return self._completed_e2e if name == "e2e_completed" else self._sketches[name]

    def rate(self, number: int) -> float | None:
        """Return a number of requests over all that ended; None if none ended."""
        return number / self.terminated if self.terminated else None

    @property
    def rejected(self) -> int:
        """Failures because the server refused the request."""
        return sum(
            number
            for (outcome, _, reason), number in self.abnormal.items()
            if outcome == "failed" and reason in REJECTIONS
        )

    def mean_shares(self) -> dict[str, float]:
        """Return the mean share of every stage over the requests with complete boundaries; empty of none."""
        # A mean of shares, not a share of sums: a long request must not speak for all.
        return {stage: self.share_sums[stage] / self.shared for stage in STAGES} if self.shared else {}
