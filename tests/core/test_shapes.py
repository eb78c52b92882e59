"""The rows beyond the default: preempt and resume, output, preprocess_first and pooling."""

from __future__ import annotations

from typing import Any

import pytest

from .builders import metrics, outcome, replay, to_prefill, trace

PREPROCESS_FIRST = trace(
    ("arrive", 0), ("input_ready", 8), ("admit", 10), ("first_token", 15), ("token", 16), ("complete", 16)
)
POOLED = trace(("arrive", 0), ("admit", 1), ("input_ready", 2), ("complete", 5))


def test_preprocess_first() -> None:
    """A stage lasts as long as its state; the stages still sum to TTFT."""
    assert metrics(PREPROCESS_FIRST, "preprocess_first") == {
        "queue_wait": 2,
        "preprocessing": 8,
        "prefill": 5,
        "ttft": 15,
        "tpot": 1,
        "decode_time": 1,
        "token_span": 1,
        "e2e": 16,
        "streamed_tokens": 2,
    }


def test_preprocess_first_is_attributed_to_its_own_stages() -> None:
    """Preprocessing has 8 of 16."""
    assert outcome(PREPROCESS_FIRST, "preprocess_first") == {
        "outcome": "completed",
        "stage": "preprocessing",
        "dominant_share": 0.5,
    }


def test_preprocess_first_names_the_state_it_failed_in() -> None:
    """After its input is ready such a request is queued."""
    events = trace(("arrive", 0), ("input_ready", 8), ("timeout", 9))
    report = replay(events, "preprocess_first")
    assert (report["shape"], report["failure_stage"], report["timestamps"]) == (
        "preprocess_first",
        "queued",
        {"arrival": 0, "input_ready": 8, "terminal": 9},
    )
    assert outcome(events, "preprocess_first") == {"outcome": "timed_out", "stage": "queued", "dominant_share": None}


@pytest.mark.parametrize(
    ("place", "lost"),
    [
        (0, {"preprocessing", "ttft", "e2e"}),
        (1, {"preprocessing", "queue_wait"}),
        (2, {"queue_wait", "prefill"}),
        (3, {"prefill", "ttft", "tpot", "decode_time", "token_span"}),
    ],
)
def test_preprocess_first_with_an_unknown_time(place: int, lost: set[str]) -> None:
    """What is lost follows the order of the shape."""
    events = [{**event, "timestamp": None} if at == place else event for at, event in enumerate(PREPROCESS_FIRST)]
    known = metrics(PREPROCESS_FIRST, "preprocess_first")
    assert metrics(events, "preprocess_first") == {
        name: None if name in lost else value for name, value in known.items()
    }


def test_pooling() -> None:
    """Its prefill is the model's one pass; everything about tokens is None."""
    assert metrics(POOLED, "pooling") == {
        "queue_wait": 1,
        "preprocessing": 1,
        "prefill": 3,
        "ttft": None,
        "tpot": None,
        "decode_time": None,
        "token_span": None,
        "e2e": 5,
        "streamed_tokens": None,
    }


def test_pooling_is_attributed_without_decode() -> None:
    """Queue, preprocessing and prefill are all it needs."""
    assert outcome(POOLED, "pooling") == {"outcome": "completed", "stage": "prefill", "dominant_share": 0.6}


def test_pooling_with_a_boundary_missing() -> None:
    """No guess here either."""
    events = [POOLED[0], {"event": "admit", "timestamp": None}, *POOLED[2:]]
    assert outcome(events, "pooling") == {"outcome": "completed", "stage": None, "dominant_share": None}


def test_preempted_in_decode_is_gross() -> None:
    """Preempted time is inside the stage it interrupted."""
    events = [
        *to_prefill(),
        *trace(("first_token", 7), ("preempt", 8), ("resume", 11), ("token", 12), ("complete", 12)),
    ]
    assert metrics(events) == {
        "queue_wait": 2,
        "preprocessing": 1,
        "prefill": 4,
        "ttft": 7,
        "tpot": 5,
        "decode_time": 5,
        "token_span": 5,
        "e2e": 12,
        "streamed_tokens": 2,
    }
    report = replay(events)
    assert ({stage: time for stage, time in report["preempted"].items() if time}, report["itl"]) == (
        {"decode": 3},
        [5],
    )


def test_shares_are_net_of_preemption() -> None:
    """Gross, decode has 5 of 12; net it has 2 of 9, and prefill 4 of 9."""
    events = [
        *to_prefill(),
        *trace(("first_token", 7), ("preempt", 8), ("resume", 11), ("token", 12), ("complete", 12)),
    ]
    assert outcome(events, dominance_threshold=0.4) == {
        "outcome": "completed",
        "stage": "prefill",
        "dominant_share": 4 / 9,
    }


def test_preempted_in_both_stages_more_than_once() -> None:
    """Interruptions add up by the state they interrupted."""
    events = [
        *to_prefill(0, 1, 2),
        *trace(("preempt", 3), ("resume", 5), ("preempt", 6), ("resume", 10), ("first_token", 11)),
        *trace(("preempt", 12), ("resume", 13), ("preempt", 20), ("resume", 20), ("complete", 20)),
    ]
    report = replay(events)
    assert report["preempted"] == {"prefill": 6, "decode": 1}
    assert metrics(events) == {
        "queue_wait": 1,
        "preprocessing": 1,
        "prefill": 9,
        "ttft": 11,
        "tpot": None,
        "decode_time": 9,
        "token_span": 0,
        "e2e": 20,
        "streamed_tokens": 1,
    }
    assert outcome(events) == {"outcome": "completed", "stage": "decode", "dominant_share": 8 / 13}


@pytest.mark.parametrize("event", ["cancel", "timeout", "fail"])
@pytest.mark.parametrize(("time", "preempted"), [(11, 3), (8, 0), (None, None)])
def test_end_while_preempted(event: str, time: int | None, preempted: int | None) -> None:
    """The state it ended in is preempted; the time since the interruption was preempted time, unknown with its end."""
    report = replay([*to_prefill(), *trace(("first_token", 7), ("preempt", 8), (event, time))])
    assert (report["failure_stage"], report["preempted"]) == ("preempted", {"decode": preempted})


@pytest.mark.parametrize(("preempt", "resume"), [(None, 11), (8, None), (None, None)])
def test_preemption_of_an_unknown_time(preempt: int | None, resume: int | None) -> None:
    """Gross durations stand; shares and bottleneck are absent."""
    events = [
        *to_prefill(),
        *trace(("first_token", 7), ("preempt", preempt), ("resume", resume), ("token", 12), ("complete", 12)),
    ]
    assert outcome(events) == {"outcome": "completed", "stage": None, "dominant_share": None}
    assert (metrics(events)["decode_time"], metrics(events)["tpot"]) == (5, 5)
    assert replay(events)["preempted"]["decode"] is None


@pytest.mark.parametrize("count", [0, 1, 40, None])
def test_whole_output_at_once(count: int | None) -> None:
    """The first-token time stays unknown, and so does all that hangs on it; never 0, never e2e / n."""
    events = [*to_prefill(0, 0, 0), *trace(("output", 5, {"count": count}), ("complete", 5))]
    assert metrics(events) == {
        "queue_wait": 0,
        "preprocessing": 0,
        "prefill": None,
        "ttft": None,
        "tpot": None,
        "decode_time": None,
        "token_span": None,
        "e2e": 5,
        "streamed_tokens": count,
    }
    report = replay(events)
    assert (report["output_tokens"], report["itl"], "first_token" in report["timestamps"]) == (count, [], False)
    assert outcome(events) == {"outcome": "completed", "stage": None, "dominant_share": None}


def test_tokens_after_a_whole_output() -> None:
    """They count; the token times stay incomplete and give no metric."""
    events = [
        *to_prefill(),
        *trace(("output", 7, {"count": 4}), ("token", 9), ("token", 11, {"count": 2}), ("complete", 12)),
    ]
    known: dict[str, Any] = {"queue_wait": 2, "preprocessing": 1, "e2e": 12, "streamed_tokens": 7}
    assert metrics(events) == dict.fromkeys(metrics(events), None) | known
    assert replay(events)["choices"] == {0: {"first": None, "last": 11, "tokens": 7}}


def test_output_is_cut_off_in_decode() -> None:
    """After it, the request is in decode."""
    events = [*to_prefill(), *trace(("output", 7, {"count": 4}), ("cancel", 9))]
    assert outcome(events) == {"outcome": "cancelled", "stage": "decode", "dominant_share": None}
