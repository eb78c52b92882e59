"""Times of two clocks, and times given beside live marks: no figure is published that cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_lifecycle import compute_request_metrics
from otel_lifecycle._core.checker import Checker
from otel_lifecycle._core.lifecycle import SHAPES, TERMINAL_EVENTS
from otel_lifecycle._core.report import Report, build_report
from otel_lifecycle._core.timeline import Timeline

STAGES = ("queue_wait", "preprocessing", "prefill")
ENDS = sorted(TERMINAL_EVENTS)


def checker(*events: tuple[Any, ...]) -> Checker:
    """Return a checker that has seen ``(event, time[, options])``."""
    made = Checker(Timeline(SHAPES["default"]))
    for event, time, *options in events:
        made.apply(event, time, **(options[0] if options else {}))
    return made


def judged(made: Checker) -> tuple[Report, Mapping[str, Any], dict[str, int]]:
    """Return report, metrics and violations of an ended request."""
    made.judge_clocks()
    report = build_report(made.timeline, made.timeline.state)
    return report, compute_request_metrics(report), {str(kind): count for kind, count in made.counts.items()}


REMOTE: dict[str, Any] = {"remote": True}


@pytest.mark.parametrize("preemptions", [0, 1, 31, 32, 63, 64, 1000])
def test_end_is_compared_after_any_number_of_preemptions(preemptions: int) -> None:
    """The engine's clock is behind: its end lies before our arrival, and e2e is absent, not negative."""
    made = checker(("arrive", 100), ("admit", 101), ("input_ready", 102), ("first_token", 103))
    for number in range(preemptions):
        made.apply("preempt", 104 + number)
        made.apply("resume", 104 + number)
    made.apply("complete", 50, **REMOTE)
    _, metrics, violations = judged(made)
    assert (metrics["e2e"], metrics["decode_time"], metrics["ttft"], violations) == (
        None,
        None,
        3,
        {"foreign_clock": 1},
    )


def test_token_span_of_choices_timed_by_two_clocks() -> None:
    """One choice is timed here, one by an engine whose clock is behind: only figures of one clock remain."""
    made = checker(
        ("arrive", 100),
        ("admit", 101),
        ("input_ready", 102),
        ("first_token", 103),
        ("token", 105),
        ("token", 3, {"choice": 1, "remote": True}),
        ("token", 7, {"choice": 1, "remote": True}),
        ("complete", 106),
    )
    report, metrics, violations = judged(made)
    assert metrics == {
        "queue_wait": 1,
        "preprocessing": 1,
        "prefill": 1,
        "ttft": 3,
        "tpot": (2 + 4) / 2,
        "decode_time": 3,
        "token_span": None,
        "e2e": 6,
        "streamed_tokens": 4,
    }
    assert (report["foreign"], report["foreign_choices"], violations) == ([], [1], {"foreign_clock": 1})
    assert (report["token_times"], report["itl"]) == ([103, 105, None, None], [2, 4])


def test_token_span_of_clocks_that_agree() -> None:
    """Nothing proves the two clocks apart: the span runs over the tokens of both."""
    made = checker(
        ("arrive", 100),
        ("admit", 101),
        ("input_ready", 102),
        ("first_token", 103),
        ("token", 104, {"choice": 1, "remote": True}),
        ("token", 105),
        ("complete", 106),
    )
    report, metrics, violations = judged(made)
    assert (metrics["token_span"], report["token_times"], violations) == (2, [103, 104, 105], {})
    assert "foreign_choices" not in report


@pytest.mark.parametrize("at", [110, 10**6])
def test_live_tokens_before_a_first_token_given_later(at: int) -> None:
    """Tokens marked before the first token lose their time; they count, and nothing is sorted into a figure."""
    made = checker(("arrive", 100), ("admit", 101), ("input_ready", 102), ("first_token", at, {"given": True}))
    # What a live handle does by itself.
    made.timeline.tokens[0].extend([103, 104, 105])
    made.apply("complete", at + 5, given=True)
    report, metrics, violations = judged(made)
    assert (report["token_times"], report["itl"]) == ([at, None, None, None], [])
    assert (metrics["ttft"], metrics["token_span"], metrics["tpot"]) == (at - 100, None, None)
    assert (metrics["streamed_tokens"], metrics["decode_time"], violations) == (4, 5, {"foreign_clock": 1})


def test_live_tokens_before_a_time_given_and_no_event_after_them() -> None:
    """The end is live and loses its time as well; the tokens are found although no given time followed them."""
    made = checker(("arrive", 100), ("admit", 101), ("input_ready", 102), ("first_token", 500, {"given": True}))
    made.timeline.tokens[0].extend([103, 104])
    made.apply("complete", None)
    report, metrics, violations = judged(made)
    assert (report["choices"], metrics["token_span"]) == ({0: {"first": 500, "last": None, "tokens": 3}}, None)
    assert violations == {"foreign_clock": 1}


def test_end_given_before_a_live_token_out_of_order() -> None:
    """Racing threads append out of order: an end before the latest of their tokens goes back, whichever came last."""
    made = checker(("arrive", 100), ("admit", 101), ("input_ready", 102), ("first_token", 103))
    made.timeline.tokens[0].extend([109, 104])
    made.apply("complete", 106, given=True)
    _, metrics, violations = judged(made)
    assert (metrics["e2e"], metrics["token_span"], violations) == (None, 6, {"non_monotonic_time": 1})


def test_racing_live_tokens_are_no_fault() -> None:
    """Without a given time, order among live tokens proves nothing."""
    made = checker(("arrive", 100), ("admit", 101), ("input_ready", 102), ("first_token", 103))
    made.timeline.tokens[0].extend([105, 104])
    made.apply("complete", 106)
    report, metrics, violations = judged(made)
    assert (report["itl"], metrics["token_span"], violations) == ([1, 1], 2, {})


def test_folding_keeps_what_was_checked() -> None:
    """A fold moves the places of the log: later tokens are compared with the given time all the same."""
    made = checker(("arrive", 0), ("admit", 0), ("input_ready", 0), ("first_token", 1, {"given": True}))
    log = made.timeline.tokens[0]
    log.extend(range(2, 12))
    assert made.timeline.fold(0, 6) == [1] * 6
    made.apply("token", 50, given=True)
    log.extend([20, 60])
    made.apply("complete", 60, given=True)
    report, metrics, violations = judged(made)
    assert (report["choices"], metrics["token_span"]) == ({0: {"first": 1, "last": 60, "tokens": 14}}, 59)
    assert violations == {"foreign_clock": 1}


@st.composite
def requests(draw: st.DrawFn) -> Checker:
    """Draw a request whose events are live, given or another clock's, at times that need not fit together."""
    made = Checker(Timeline(SHAPES["default"]))
    behind = draw(st.sampled_from([0, 0, 40, -40, 10**6, -(10**6)]))
    now = 10**9
    made.apply("arrive", now, given=draw(st.booleans()))
    for _ in range(draw(st.integers(0, 60))):
        now += draw(st.integers(0, 10))
        allowed = [event for event in SHAPES["default"].table[made.timeline.state] if event not in ENDS]
        if not allowed:
            break
        event = draw(st.sampled_from(sorted(allowed)))
        way = draw(st.sampled_from(["live", "given", "remote", "hot"]))
        choice = draw(st.integers(0, 1)) if "token" in event else 0
        if way == "hot" and event == "token" and 0 in made.timeline.tokens:
            made.timeline.tokens[0].append(now)
        elif way == "remote":
            made.apply(event, now + behind, choice=choice, remote=True)
        else:
            off = draw(st.integers(-100, 100)) if way == "given" else 0
            made.apply(event, now + off, choice=choice, given=way == "given")
    way = draw(st.sampled_from(["live", "given", "remote"]))
    end = draw(st.sampled_from([event for event in ENDS if event in SHAPES["default"].table[made.timeline.state]]))
    made.apply(end, now + (behind if way == "remote" else 0), remote=way == "remote", given=way == "given")
    return made


@given(made=requests())
def test_figures_are_possible(made: Checker) -> None:
    """Whatever clocks gave the times: nothing is negative, and no part is larger than its whole."""
    report, metrics, _ = judged(made)
    durations = [metrics[name] for name in (*STAGES, "ttft", "tpot", "decode_time", "token_span", "e2e")]
    known = [value for value in (*durations, *report["itl"], *report["preempted"].values()) if value is not None]
    assert [value for value in known if value < 0] == []
    for part, whole in (("ttft", "e2e"), ("decode_time", "e2e"), ("token_span", "decode_time"), ("queue_wait", "e2e")):
        if metrics[part] is not None and metrics[whole] is not None:
            assert metrics[part] <= metrics[whole], (part, whole)
    if metrics["ttft"] is not None and None not in (stages := [metrics[name] for name in STAGES]):
        assert sum(stages) == metrics["ttft"]
