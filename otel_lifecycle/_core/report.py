"""From a timeline to the report of one request, and the replay of recorded events into one.

A :class:`Report` is the plain mapping that the four public functions exchange.  Inside the package it is typed, and
nobody changes one: what an owner knows better than the timeline is an argument of :func:`build_report`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, Final, TypedDict

from otel_lifecycle._core.lifecycle import TERMINAL_EVENTS, TERMINAL_STATES, get_shape
from otel_lifecycle._core.stalls import STALL_FACTOR, long_gaps, usual_gap
from otel_lifecycle._core.timeline import Timeline
from otel_lifecycle._core.tokens import MAX_TOKEN_TIMES, ChoiceTokens, Log, Time, TokenTimes, merged_times, total
from otel_lifecycle.errors import InvalidValue, MissingTerminal

CHUNK_TOLERANCE: Final = 3
CHUNK_TOLERANCE_SHARE: Final = 0.03
"""A usage figure may exceed the frames by the larger of the two, in tokens and of the frames, before the frames are
proven to be chunks.  A stop token and a held-back piece of UTF-8 explain as much in streams of single tokens."""


class ChoiceReport(TypedDict):
    """One choice: time of its first and last token (None if unknown), and how many (None if unknown)."""

    first: Time | None
    last: Time | None
    tokens: int | None


class InterruptionReport(TypedDict):
    """One preemption: the state it interrupted, and its bounds, None where unknown."""

    state: str
    start: Time | None
    end: Time | None


class ReportKeys(TypedDict):
    """What every report has, as :func:`replay_request_events` describes it."""

    status: str
    failure_stage: str | None
    timestamps: dict[str, Time]
    token_times: list[Time | None] | None
    shape: str
    preempted: dict[str, Time | None]
    output_tokens: int | None
    choices: dict[int, ChoiceReport]
    itl: list[Time]


class Report(ReportKeys, total=False):
    """One request that has ended.

    Further keys only where they say something: ``foreign`` names the ``timestamps`` that another clock gave, and
    ``foreign_choices`` the choices it timed, of a request whose clocks are proven apart.  ``token_times_dropped``:
    tokens whose times are not listed.  ``streamed_chunks``: frames of unknown size, proven by the usage figure.
    ``output_at``: when a whole answer appeared.  ``interruptions``: the first preemptions one by one, and
    ``interruptions_dropped`` how many more there were.  ``long_gaps``: the gaps between single tokens of one choice
    that are longer than twice the median, as ``(start, end)``.  ``unit``: what the outputs of the request
    are counted in, if they are not tokens; then ``outputs`` is how much they are, None if unknown, and ``output_gaps``
    lie between them.  ``derived``: the ``timestamps`` that follow from how long the engine says its stages took.
    """

    foreign: list[str]
    foreign_choices: list[int]
    token_times_dropped: int
    streamed_chunks: int
    output_at: Time
    interruptions: list[InterruptionReport]
    interruptions_dropped: int
    long_gaps: list[tuple[Time, Time]]
    unit: str
    outputs: float | None
    output_gaps: list[Time]
    derived: list[str]


def build_report(
    timeline: Timeline,
    status: str,
    *,
    token_times: bool = True,
    usage: int | None = None,
    unmarked: bool = False,
) -> Report:
    """Return the report of a request that ended with ``status``.

    ``usage``: the output count that the server gave, final for the choices it covers.  It stands where a mark of
    unknown size left the count unknown, and where it proves that frames were chunks.  ``unmarked``: nobody marked a
    boundary, so the stage of its end and the count of its marks are unknown.  ``token_times``: list the tokens' times.
    """
    timeline.check_appended()
    apart = timeline.clocks_apart()
    choices = dict(timeline.choices(apart))
    counted = _output_tokens(timeline, choices)
    chunks = _proven_chunks(timeline, counted, usage)
    report: Report = {
        "status": status,
        # An incomplete request did not fail, so there is no stage in which it did.
        "failure_stage": None if unmarked or status in ("completed", "incomplete") else timeline.ended_in,
        "timestamps": dict(timeline.times),
        "token_times": None,
        "shape": timeline.shape.name,
        "preempted": _preempted(timeline, apart),
        "output_tokens": _told_tokens(timeline, counted, usage, doubtful=unmarked or chunks is not None),
        "choices": _choices(timeline, choices, chunked=chunks is not None),
        # Gaps between chunks are not inter-token latency.
        "itl": [] if chunks is not None else _gaps(choices),
    }
    if chunks is not None:
        report["streamed_chunks"] = chunks
    if apart:
        _list_foreign(report, timeline)
    if token_times:
        _list_times(report, _token_times(timeline, apart))
        _list_stays(report, timeline)
    return report


def _told_tokens(timeline: Timeline, counted: int | None, usage: int | None, *, doubtful: bool) -> int | None:
    # A pooling request puts out no tokens; a usage figure there counts something else.
    if not timeline.shape.streams:
        return None
    return usage if counted is None or doubtful else counted


def moved(report: Report, offset: Time) -> Report:
    """Return a report whose instants are moved by ``offset``; durations stay."""

    def later(time: Time | None) -> Time | None:
        return None if time is None else time + offset

    there: Report = {
        **report,
        "timestamps": {key: time + offset for key, time in report["timestamps"].items()},
        "choices": {
            number: {"first": later(choice["first"]), "last": later(choice["last"]), "tokens": choice["tokens"]}
            for number, choice in report["choices"].items()
        },
    }
    if report["token_times"] is not None:
        there["token_times"] = [later(time) for time in report["token_times"]]
    if "output_at" in report:
        there["output_at"] = report["output_at"] + offset
    if "interruptions" in report:
        there["interruptions"] = [
            {"state": one["state"], "start": later(one["start"]), "end": later(one["end"])}
            for one in report["interruptions"]
        ]
    if "long_gaps" in report:
        there["long_gaps"] = [(start + offset, end + offset) for start, end in report["long_gaps"]]
    return there


def _proven_chunks(timeline: Timeline, counted: int | None, usage: int | None) -> int | None:
    """Return how many frames there were, if the usage figure proves that they were not single tokens; else None."""
    if not timeline.assumed or counted is None or usage is None:
        return None
    tolerance = max(CHUNK_TOLERANCE, CHUNK_TOLERANCE_SHARE * counted)
    return counted if usage - counted > tolerance else None


def _list_foreign(report: Report, timeline: Timeline) -> None:
    """Name what another clock timed, so that nobody compares it with the rest."""
    here = timeline.tokens.keys() | timeline.folded.keys()
    local = {choice for choice in here if timeline.tokens.get(choice) or choice in timeline.folded}
    report["foreign"] = sorted(timeline.remote)
    report["foreign_choices"] = sorted((timeline.remote_tokens.keys() | timeline.folded_remote.keys()) - local)


def _token_times(timeline: Timeline, apart: bool) -> TokenTimes:
    """Return the tokens' times; of two clocks that are apart only those on the clock of the first token."""
    here, there = list(timeline.tokens.values()), list(timeline.remote_tokens.values())
    if not apart:
        return merged_times([*here, *there])
    # The list has one axis: times of a clock that is proven apart would stand at wrong places.
    known, unknown = (there, here) if "first_token" in timeline.remote else (here, there)
    times = merged_times(known)
    rest = merged_times(map(_without_times, unknown), MAX_TOKEN_TIMES - len(times.times))
    return TokenTimes(times=times.times + rest.times, dropped=times.dropped + rest.dropped)


def _without_times(log: Log) -> Log:
    return [(None, item[1] if type(item) is tuple else 1) for item in log]


def _list_times(report: Report, times: TokenTimes) -> None:
    report["token_times"] = times.times
    if times.dropped:
        report["token_times_dropped"] = times.dropped


def _list_stays(report: Report, timeline: Timeline) -> None:
    """Add what the split among other requests needs, and the durations do not."""
    if timeline.output_at is not None:
        report["output_at"] = timeline.output_at
    if timeline.interruptions:
        report["interruptions"] = [
            {"state": one.state, "start": one.start, "end": one.end} for one in timeline.interruptions
        ]
        dropped = sum(timeline.preemptions.values()) - len(timeline.interruptions)
        if dropped:
            report["interruptions_dropped"] = dropped
    usual = usual_gap(sorted(report["itl"]))
    # Every stall is longer than this. The margin in nanoseconds is applied later, since a replay may be in any unit.
    gaps = [] if usual is None else long_gaps(timeline, STALL_FACTOR * usual)
    if gaps:
        report["long_gaps"] = gaps


def _gaps(choices: Mapping[int, ChoiceTokens]) -> list[Time]:
    """Return the ITL samples; none of a request with a chunk of unknown size, whose singles may be chunks too."""
    if any(choice.tokens is None for choice in choices.values()):
        return []
    return list(chain.from_iterable(choice.gaps for choice in choices.values()))


def longest_folded(timeline: Timeline, report: Report) -> Time | None:
    """Return the longest ITL sample of the beginnings that are no longer held; None where nothing was folded."""
    if any(choice["tokens"] is None for choice in report["choices"].values()):
        return None
    folded = [*timeline.folded.values(), *timeline.folded_remote.values()]
    longest = [choice.longest_folded for choice in folded if choice.longest_folded is not None]
    return max(longest, default=None)


def _preempted(timeline: Timeline, apart: bool) -> dict[str, Time | None]:
    preempted = dict(timeline.preempted)
    if apart:
        # Unknown, not 0: it was preempted, and two clocks cannot say for how long.
        preempted.update(dict.fromkeys(timeline.preempted_across))
    return preempted


def _output_tokens(timeline: Timeline, choices: Mapping[int, ChoiceTokens]) -> int | None:
    """Return how many tokens the marks count; None where a count is unknown."""
    counts = [choice.tokens for choice in choices.values()]
    if timeline.output_seen:
        counts.append(timeline.whole_output)
    return total(counts)


def _choices(timeline: Timeline, choices: Mapping[int, ChoiceTokens], *, chunked: bool) -> dict[int, ChoiceReport]:
    told: dict[int, ChoiceReport] = {
        number: {"first": choice.first, "last": choice.last, "tokens": None if chunked else choice.tokens}
        for number, choice in choices.items()
    }
    if timeline.output_seen:
        # Its tokens came together with the rest of the answer: how many is known, when the first did is not.
        whole = told.setdefault(0, {"first": None, "last": None, "tokens": 0})
        whole["tokens"] = total((whole["tokens"], timeline.whole_output))
        for choice in told.values():
            choice["first"] = None
    return told


def replay_request_events(events: Iterable[Mapping[str, Any]], shape: str = "default") -> dict[str, Any]:
    """Replay one request's recorded events through the lifecycle.

    ``events``: mappings with ``event`` and ``timestamp`` (a finite number in any unit, or None for unknown), and for
    tokens ``count`` (default 1; None for unknown; for ``output`` default None) and ``choice`` (default 0).

    Returns ``status``, ``failure_stage`` (the state an abnormal end came in, else None), ``timestamps`` (arrival,
    admitted, input_ready, first_token, terminal, as far as known), ``token_times``, ``shape``, ``preempted``
    ``{state: time or None}``, ``output_tokens`` (None if unknown), ``choices`` ``{choice: {first, last, tokens}}`` and
    ``itl`` (the gaps between neighbouring single tokens of one choice), all in the unit of the input.  ``token_times``
    lists at most 196,608 tokens; ``token_times_dropped`` counts the rest, if there is one.

    Raises a :class:`~otel_lifecycle.errors.LifecycleError` for no events, an unknown event, an illegal transition, a
    decreasing or impossible time, anything after the end or an end before arrival, and a trace without an end.
    """
    timeline = Timeline(get_shape(shape))
    for item in events:
        apply_event(timeline, item)
    if timeline.state not in TERMINAL_STATES:
        legal = tuple(timeline.shape.table[timeline.state])
        allowed = tuple(event for event in legal if event in TERMINAL_EVENTS) or legal
        what = "no events" if timeline.state == "not_arrived" else f"the trace stops while {timeline.state}"
        raise MissingTerminal(
            f"{what}; it must close with a terminal event; legal here: {' or '.join(allowed)}",
            state=timeline.state,
            allowed=allowed,
        )
    return dict(build_report(timeline, timeline.state))


def apply_event(timeline: Timeline, item: Mapping[str, Any]) -> None:
    """Apply one recorded event."""
    try:
        event, timestamp = item["event"], item["timestamp"]
    except (KeyError, TypeError, IndexError) as error:
        raise InvalidValue(
            f"an event is a mapping with 'event' and 'timestamp', not {item!r:.80}", state=timeline.state
        ) from error
    if not isinstance(event, str):
        raise InvalidValue(f"the name of an event is a string, not {event!r:.80}", state=timeline.state)
    # An `output` is a whole answer of any size, a `token` is one.
    default = None if event == "output" else 1
    timeline.apply(event, timestamp, item.get("count", default), item.get("choice", 0))
