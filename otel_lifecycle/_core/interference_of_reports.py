"""Who held whom, among requests that have ended: the same computation as at the end of a live request.

Every request is put into the slots of its engine as its report tells, and then compared with those that overlap it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from otel_lifecycle._core.engine_slot import EngineSlot
from otel_lifecycle._core.interference import Interference
from otel_lifecycle._core.lifecycle import PREEMPTED, get_shape
from otel_lifecycle._core.metrics import request_metrics
from otel_lifecycle._core.outcome import DOMINANCE_THRESHOLD, classify_request_outcome
from otel_lifecycle._core.report import Report
from otel_lifecycle._core.stalls import NO_STALLS, Stalls, stalls_of, usual_gap
from otel_lifecycle._core.who_held import who_held, windows_of
from otel_lifecycle.errors import InvalidValue


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One request in its engine; ``start`` and ``end`` enclose everything known of it."""

    place: int
    report: Report
    slot: EngineSlot
    start: int
    end: int


def compute_interference(
    requests: Iterable[Mapping[str, Any]], dominance_threshold: float = DOMINANCE_THRESHOLD
) -> list[dict[str, Any]]:
    """Work out who held whom among finished requests.

    ``requests``: mappings with ``report`` (of :func:`replay_request_events`, or of a finished handle; its times are
    integer nanoseconds on one axis), ``engine`` (only requests of the same one can interfere; left out: one for all)
    and ``id`` (comes back in ``culprits``; left out: the place in ``requests``).

    Returns one mapping for each request, in their order.  Times are integer nanoseconds:

    - ``queue``: ``{'wait', 'preprocessing', 'prefill', 'decode', 'idle'}``, the last four add up to the first; None
      where the wait is not known.
    - ``stalls``: ``{'count', 'time', 'max', 'prefill', 'preemption', 'unexplained'}``, the last three add up to
      ``time``; None for fewer than 8 gaps.
    - ``ahead``, ``running``: others that waited and ran at the arrival; ``company``: ``{'prefill', 'decode'}``, the
      mean number of others that ran during that stage.
    - ``culprits``: ``[{'id', 'reason', 'time'}]``, at most three for each reason (``queue``, ``stall``).
    - ``cause``: of the bottleneck, if there is one.
    - ``complete``: whether all others that overlap it show their boundaries.

    Raises InvalidValue for a time that is not an integer.
    """
    engines: dict[object, list[_Entry]] = {}
    place = -1
    for place, request in enumerate(requests):
        report = request["report"]
        entry = _entry(place, report, request.get("id", place))
        if entry is not None:
            engines.setdefault(request.get("engine"), []).append(entry)
    # A request without any known time is in no engine; its answer says that nothing is known.
    found: list[dict[str, Any]] = [_told(Interference(), None) for _ in range(place + 1)]
    for entries in engines.values():
        for entry, interference in _of_engine(entries):
            found[entry.place] = _told(interference, _cause(entry.report, interference, dominance_threshold))
    return found


def _entry(place: int, report: Report, who: object) -> _Entry | None:
    times = [time for time in report["timestamps"].values() if time is not None]
    # The exact type: a bool is an int to Python, and a float cannot hold epoch nanoseconds.
    if any(type(time) is not int for time in times):
        raise InvalidValue(f"interference is computed in integer nanoseconds, not in {times[0]!r:.40}")
    if not times:
        return None
    return _Entry(place=place, report=report, slot=slot_of(report, who), start=min(times), end=max(times))


def _of_engine(entries: list[_Entry]) -> Iterable[tuple[_Entry, Interference]]:
    """Yield each request of one engine with what was done to it."""
    entries.sort(key=lambda entry: (entry.start, entry.place))
    starts = [entry.start for entry in entries]
    # Whatever overlaps a request began within the longest lifetime before it: so a day of traffic is not compared
    # with itself as a whole.
    longest = max(entry.end - entry.start for entry in entries)
    for entry in entries:
        windows = windows_of(entry.report)
        if windows is None:
            yield entry, Interference()
            continue
        near = entries[bisect_left(starts, windows.first - longest) : bisect_left(starts, windows.last + 1)]
        others = [other.slot for other in near if other is not entry and other.slot.stopped > windows.first]
        yield entry, who_held(entry.slot, others, windows, stalls_in(entry.report))


def stalls_in(report: Report) -> Stalls | None:
    """Return the stalls that a whole report claims; None where there are too few gaps."""
    usual = usual_gap(sorted(report["itl"]))
    if usual is None:
        return None
    return stalls_of(report["long_gaps"], usual) if "long_gaps" in report else NO_STALLS


def slot_of(report: Report, who: object) -> EngineSlot:
    """Return the slot of a request that has ended, as its report tells its states."""
    times = report["timestamps"]
    slot = EngineSlot(who, report["shape"], times.get("arrival"))
    reached = _reached(report)
    for stage in get_shape(report["shape"]).stages[:reached]:
        entered = times.get(stage.entered)
        if stage.state == "decode" and entered is None:
            entered = report.get("output_at")
        # A new slot is in the first state already.
        if stage.entered != "arrival":
            slot.enter(stage.state, entered)
        for one in report.get("interruptions", ()):
            if one["state"] == stage.state:
                slot.enter(PREEMPTED, one["start"])
                slot.enter(stage.state, one["end"])
    # The report lists the first preemptions only. An unknown time puts the rest of its running in doubt.
    if report.get("interruptions_dropped"):
        slot.enter(PREEMPTED, None)
    # Without a terminal event it ended no earlier than the last thing known of it.
    last = max(times.values())
    slot.end(times.get("terminal"), last)
    if "foreign" in report:
        # Another clock gave some of its times, so they cannot be compared with those of other requests.
        slot.doubt(min(times.values()), last)
    return slot


def _reached(report: Report) -> int:
    """Return how many of its stages a request entered."""
    stages = get_shape(report["shape"]).stages
    if report["status"] == "completed":
        return len(stages)
    state = report["failure_stage"]
    if state == PREEMPTED and report.get("interruptions"):
        state = report["interruptions"][-1]["state"]
    places = [place for place, stage in enumerate(stages, 1) if stage.state == state]
    known = [place for place, stage in enumerate(stages, 1) if stage.entered in report["timestamps"]]
    # A whole answer leads to decode and leaves no first-token time.
    if "output_at" in report:
        known.append(len(stages))
    return max([*places, *known], default=0)


def _cause(report: Report, interference: Interference, threshold: float) -> str | None:
    metrics = request_metrics(report)
    try:
        stage = classify_request_outcome(report, metrics, threshold)["stage"]
    except InvalidValue:
        # Every boundary at one instant: there is no bottleneck.
        return None
    return interference.cause(stage if report["status"] == "completed" else None, metrics["decode_time"])


def _told(found: Interference, cause: str | None) -> dict[str, Any]:
    stalls = found.stalls
    return {
        "queue": None if found.queue is None else {"wait": found.queue.wait, **asdict(found.queue)},
        "stalls": None
        if stalls is None
        else {
            "count": len(stalls.intervals),
            "time": stalls.time,
            "max": stalls.longest,
            **({} if found.stall_split is None else asdict(found.stall_split)),
        },
        "ahead": found.ahead,
        "running": found.running,
        "company": {"prefill": found.company_prefill, "decode": found.company_decode},
        "culprits": [{"id": one.who, "reason": one.reason, "time": one.time} for one in found.culprits],
        "cause": cause,
        "complete": found.complete,
    }
