"""What is called a stall, of a request's own tokens."""

from __future__ import annotations

import pytest

from otel_lifecycle._core.lifecycle import SHAPES
from otel_lifecycle._core.report import build_report
from otel_lifecycle._core.stalls import Stalls, find_stalls, usual_gap
from otel_lifecycle._core.timeline import Timeline

MS = 1_000_000


def stalls(*gaps: int, chunks: dict[int, int] | None = None) -> Stalls | None:
    """Return the stalls of a request whose tokens came with these gaps in milliseconds, from 0 on.

    ``chunks``: tokens by their number -> how many came at once.
    """
    timeline = Timeline(SHAPES["default"])
    for event in ("arrive", "admit", "input_ready"):
        timeline.apply(event, 0)
    at = 0
    for number, gap in enumerate((0, *gaps)):
        at += gap * MS
        timeline.apply("token" if number else "first_token", at, (chunks or {}).get(number, 1))
    return find_stalls(timeline, sorted(build_report(timeline, "incomplete")["itl"]))


@pytest.mark.parametrize(
    ("gaps", "intervals"),
    [
        pytest.param([20] * 8, (), id="steady"),
        pytest.param([20] * 8 + [40], (), id="twice as long"),
        pytest.param([20] * 8 + [41], ((180, 201),), id="longer than twice"),
        pytest.param([2] * 8 + [7], (), id="5 ms more of a short gap"),
        pytest.param([2] * 8 + [8], ((18, 24),), id="above 5 ms more"),
        pytest.param([50, *[20] * 8, 60], ((20, 50), (230, 270)), id="at both ends"),
        pytest.param([100, 20, 20, 100, 20, 20, 20, 20], ((20, 100), (160, 240)), id="two of eight"),
    ],
)
def test_stalls(gaps: list[int], intervals: tuple[tuple[int, int], ...]) -> None:
    """A stall is the gap less the usual one, from its start on."""
    assert stalls(*gaps) == Stalls(intervals=tuple((start * MS, end * MS) for start, end in intervals))


def test_too_few_gaps() -> None:
    """Seven gaps do not say what is usual: nothing is claimed, which is not the same as no stall."""
    assert (stalls(*[20] * 6, 1000), stalls(*[20] * 7, 1000)) == (None, Stalls(intervals=((160 * MS, 1140 * MS),)))


def test_gaps_beside_a_chunk_are_no_stalls() -> None:
    """How long a chunk took cannot be told from how long its tokens took."""
    assert stalls(*[20] * 8, 500, 500, 300, chunks={9: 3}) == Stalls(intervals=((1180 * MS, 1460 * MS),))


def test_choices_stall_by_themselves() -> None:
    """The usual gap is the request's; a gap lies within one choice."""
    timeline = Timeline(SHAPES["default"])
    for event in ("arrive", "admit", "input_ready"):
        timeline.apply(event, 0)
    timeline.apply("first_token", 0)
    for number in range(1, 10):
        timeline.apply("token", 20 * number * MS)
        timeline.apply("token", 20 * number * MS, choice=1)
    timeline.apply("token", 400 * MS)
    timeline.apply("token", 500 * MS, choice=1)
    gaps = sorted(build_report(timeline, "incomplete")["itl"])
    found = find_stalls(timeline, gaps)
    assert found == Stalls(intervals=((200 * MS, 400 * MS), (200 * MS, 500 * MS)))
    assert (found.time, found.longest) == (500 * MS, 300 * MS)


def test_racing_tokens_out_of_order() -> None:
    """They are sorted among themselves before a gap is looked for."""
    timeline = Timeline(SHAPES["default"])
    for event in ("arrive", "admit", "input_ready", "first_token"):
        timeline.apply(event, 0)
    timeline.tokens[0].extend(20 * n * MS for n in (2, 1, 3, 4, 5, 6, 7, 8, 50))
    gaps = sorted(build_report(timeline, "incomplete")["itl"])
    assert find_stalls(timeline, gaps) == Stalls(intervals=((180 * MS, 1000 * MS),))


def test_folded_streams_claim_nothing() -> None:
    """Their long gaps are known, the places of these are not."""
    timeline = Timeline(SHAPES["default"])
    for event in ("arrive", "admit", "input_ready", "first_token"):
        timeline.apply(event, 0)
    timeline.tokens[0].extend(20 * n * MS for n in range(1, 30))
    gaps = timeline.fold(0, 10)
    assert (usual_gap(gaps), find_stalls(timeline, gaps)) == (20 * MS, None)
