"""One row of numbers a request, and a uniform sample of all rows."""

from __future__ import annotations

from typing import Final

import numpy as np

from otel_lifecycle._cli.evidence.sketch import Floats
from otel_lifecycle._cli.requests.model import DURATIONS, LARGEST, SeenRequest

COLUMNS: Final = (
    "start",
    "end",
    *DURATIONS,
    "itl_p50",
    "itl_p95",
    "itl_p99",
    "itl_max",
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "preempted",
    "batch_size",
    "concurrency",
    "stall_share",
    "completed",
    "whole_breakdown",
    "terminated",
    "timed_out",
    "failed",
    "rejected",
    "slo_met",
)
"""Epoch seconds, seconds, tokens, numbers; NaN is unknown.  Those from ``completed`` on are 1 or 0."""

INDEX: Final = {name: number for number, name in enumerate(COLUMNS)}
SKETCHED: Final = COLUMNS[2 : COLUMNS.index("completed")]
"""The columns whose distribution is kept; the first two are instants, the last ones flags."""
TERMINATED: Final = ("completed", "cancelled", "timed_out", "failed")
REJECTIONS: Final = frozenset({"queue_full", "rate_limited"})
"""Reasons of a failure that mean the server refused the request."""

Row = tuple[float, ...]

# NaN and not None, so that a row fits a float array; every reader filters it.
_NAN: Final = float("nan")
_CACHED: Final = "gen_ai.usage.cache_read.input_tokens"
_STALL: Final = "inference.stall.prefill"
_BATCH: Final = "inference.request.batch_size"
_CONCURRENCY: Final = "inference.request.concurrency"


def row_of(request: SeenRequest) -> Row:
    """Return the row of a request."""
    seconds, itl, attributes, outcome = request.seconds, request.itl, request.attributes, request.outcome
    return (
        request.start_ns * 1e-9,
        request.end_ns * 1e-9,
        *(seconds.get(name, _NAN) for name in DURATIONS),
        itl.get("p50", _NAN),
        itl.get("p95", _NAN),
        itl.get("p99", _NAN),
        itl.get("max", _NAN),
        _number(request.input_tokens),
        _number(request.output_tokens),
        # Attributes of foreign spans can have any type.
        _number(attributes.get(_CACHED)),
        _number(request.preempted),
        _number(attributes.get(_BATCH)),
        _number(attributes.get(_CONCURRENCY)),
        _stall_share(request),
        1.0 if outcome == "completed" else 0.0,
        # Shares exist only for a completed request with every boundary.
        1.0 if request.shares else 0.0,
        1.0 if outcome in TERMINATED else 0.0,
        1.0 if outcome == "timed_out" else 0.0,
        1.0 if outcome == "failed" else 0.0,
        1.0 if outcome == "failed" and request.reason in REJECTIONS else 0.0,
        _NAN if request.slo_met is None else float(request.slo_met),
    )


def _stall_share(request: SeenRequest) -> float:
    """Return the part of a request's decode time that it was stalled beside prefills of others."""
    stalled, decode = request.attributes.get(_STALL), request.seconds.get("decode_time")
    return _number(stalled) / decode if stalled is not None and decode else _NAN


def _number(raw: object) -> float:
    if isinstance(raw, (int, float)) and not isinstance(raw, bool) and 0 <= raw <= LARGEST:
        return float(raw)
    return _NAN


class Sample:
    """Up to ``capacity`` rows: all of them, or a uniform sample without replacement once there are more.

    Algorithm R of Vitter (1985), a batch at a time, with a fixed seed: the same input gives the same sample.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._rows: Floats = np.empty((0, len(COLUMNS)))
        # A fixed seed: the same file gives the same report.
        self._random = np.random.default_rng(0)
        self.seen = 0

    @property
    def complete(self) -> bool:
        """Whether every row seen is here."""
        return self.seen <= self._capacity

    def add(self, batch: Floats) -> None:
        """Take a batch of rows into account."""
        room = max(0, self._capacity - self.seen)
        if room:
            self._rows = np.concatenate([self._rows, batch[:room]])
        late = batch[room:]
        if len(late):
            # Row number n replaces a slot with the probability capacity / (n + 1).
            first = max(self.seen, self._capacity)
            slots = self._random.integers(0, np.arange(first, first + len(late)) + 1)
            kept = slots < self._capacity
            self._rows[slots[kept]] = late[kept]
        self.seen += len(batch)

    def column(self, name: str) -> Floats:
        """Return a column of the sample; rows in no order."""
        return self._rows[:, INDEX[name]]

    def rows(self) -> Floats:
        """Return the sampled rows."""
        return self._rows
