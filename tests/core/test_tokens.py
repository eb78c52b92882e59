"""Token counts, choices and the gaps that are inter-token latency."""

from __future__ import annotations

from typing import Any

import pytest

from .builders import Event, metrics, replay, to_prefill, trace

Chunk = tuple[float, int | None, int]
"""Time, count, choice."""


def chunks(*items: Chunk, end: float = 100) -> list[Event]:
    """Return a completed trace whose output came in these chunks."""
    names = ["first_token", *["token"] * (len(items) - 1)]
    output = [
        (name, time, {"count": count, "choice": choice})
        for name, (time, count, choice) in zip(names, items, strict=True)
    ]
    return [*to_prefill(0, 1, 2), *trace(*output, ("complete", end))]


def test_default_is_one_token_of_choice_0() -> None:
    """Count and choice need not be said."""
    plain = [*to_prefill(0, 1, 2), *trace(("first_token", 5), ("token", 7), ("complete", 100))]
    assert replay(plain) == replay(chunks((5, 1, 0), (7, 1, 0)))


def test_chunks_count_and_repeat_their_time() -> None:
    """A chunk holds several tokens at one time; TPOT is over all tokens, and no gap is a sample."""
    events = chunks((4, 1, 0), (7, 3, 0), (10, 3, 0))
    report = replay(events)
    assert (report["token_times"], report["output_tokens"], report["itl"], report["choices"]) == (
        [4, 7, 7, 7, 10, 10, 10],
        7,
        [],
        {0: {"first": 4, "last": 10, "tokens": 7}},
    )
    assert (metrics(events)["tpot"], metrics(events)["streamed_tokens"]) == (1, 7)


@pytest.mark.parametrize(
    ("items", "gaps"),
    [
        pytest.param([(4, 1, 0), (6, 1, 0), (9, 1, 0)], [2, 3], id="single tokens"),
        pytest.param([(4, 2, 0), (6, 1, 0), (9, 1, 0)], [3], id="chunk first"),
        pytest.param([(4, 1, 0), (6, 2, 0), (9, 1, 0)], [], id="chunk between"),
        pytest.param([(4, 1, 0), (6, 1, 0), (9, 2, 0)], [2], id="chunk last"),
        pytest.param([(4, 1, 0), (4, 1, 0)], [0], id="at once"),
        pytest.param([(4, 1, 0)], [], id="one token"),
        pytest.param([(4, 1, 0), (5, 1, 1), (7, 1, 0), (9, 1, 1)], [3, 4], id="two choices, interleaved"),
        pytest.param([(4, 1, 0), (5, 2, 1), (7, 1, 0), (9, 1, 1)], [3], id="chunk in the other choice"),
        pytest.param([(4, 1, 0), (5, 1, 1)], [], id="one token of each choice"),
        pytest.param([(4, 1, 0), (5, 1, 0), (6, None, 0), (9, 1, 0), (11, 1, 0)], [], id="a chunk of unknown size"),
    ],
)
def test_inter_token_latency(items: list[Chunk], gaps: list[float]) -> None:
    """A sample lies between two adjacent single-token events of one choice, in a request of known sizes only."""
    assert sorted(replay(chunks(*items))["itl"]) == gaps


def test_chunk_of_unknown_size() -> None:
    """It leaves the count and TPOT None; first and last times stand."""
    events = chunks((4, 1, 0), (6, None, 0), (9, 1, 0))
    assert replay(events)["output_tokens"] is None
    measured = metrics(events)
    assert {name: measured[name] for name in ("streamed_tokens", "tpot", "ttft", "token_span", "decode_time")} == {
        "streamed_tokens": None,
        "tpot": None,
        "ttft": 4,
        "token_span": 5,
        "decode_time": 96,
    }


def test_only_chunk_of_unknown_size() -> None:
    """Fewer than two tokens cannot be told from many: None."""
    assert metrics(chunks((4, None, 0)))["tpot"] is None


def test_choices_add_up() -> None:
    """TTFT is the earliest first token; TPOT is the sum of the spans over the sum of the gaps."""
    events = chunks((4, 1, 0), (5, 1, 1), (6, 1, 0), (8, 3, 1), (10, 1, 0))
    report = replay(events)
    assert report["choices"] == {
        0: {"first": 4, "last": 10, "tokens": 3},
        1: {"first": 5, "last": 8, "tokens": 4},
    }
    measured = metrics(events)
    assert {name: measured[name] for name in ("ttft", "streamed_tokens", "token_span", "tpot")} == {
        "ttft": 4,
        "streamed_tokens": 7,
        "token_span": 6,
        "tpot": (6 + 3) / (2 + 3),
    }


def test_choice_of_one_token_adds_no_gap() -> None:
    """It has no gap and no span."""
    assert metrics(chunks((4, 1, 0), (5, 1, 1), (8, 1, 0)))["tpot"] == 4


def test_every_choice_of_one_token() -> None:
    """Two tokens, and yet no two of one choice: there is no gap to average."""
    assert metrics(chunks((4, 1, 0), (5, 1, 1)))["tpot"] is None


def test_choice_that_starts_without_choice_0() -> None:
    """The first token may be of any choice."""
    assert replay(chunks((4, 1, 3), (6, 1, 3)))["choices"] == {3: {"first": 4, "last": 6, "tokens": 2}}


def test_epoch_nanoseconds_stay_integers() -> None:
    """A float has no room for them: every time and duration comes back exactly, and as an integer."""
    start = 1_700_000_000_000_000_001
    offsets = (0, 1, 3, 7, 10, 14, 21)
    names = ("arrive", "admit", "input_ready", "first_token", "token", "token", "complete")
    events = trace(*((name, start + offset) for name, offset in zip(names, offsets, strict=True)))
    report = replay(events)
    measured = metrics(events)
    whole: dict[str, Any] = {name: value for name, value in measured.items() if name != "tpot"}
    assert whole == {
        "queue_wait": 1,
        "preprocessing": 2,
        "prefill": 4,
        "ttft": 7,
        "decode_time": 14,
        "token_span": 7,
        "e2e": 21,
        "streamed_tokens": 3,
    }
    assert (measured["tpot"], report["itl"], report["token_times"]) == (
        3.5,
        [3, 4],
        [start + 7, start + 10, start + 14],
    )
    numbers = [*whole.values(), *report["timestamps"].values(), *report["token_times"], *report["itl"]]
    assert {type(number) for number in numbers} == {int}
