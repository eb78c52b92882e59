"""One event may claim 65,536 tokens: what is built of them is bounded, and the rest is counted."""

from __future__ import annotations

from base64 import b64decode
from struct import unpack

from otel_lifecycle import compute_request_metrics, replay_request_events
from otel_lifecycle._core.checker import MAX_WAITING, Checker, Violation
from otel_lifecycle._core.lifecycle import SHAPES
from otel_lifecycle._core.timeline import Timeline
from otel_lifecycle._core.token_offsets import TokenOffsets, token_offsets
from otel_lifecycle._core.tokens import MAX_TOKEN_TIMES

from .builders import to_prefill, trace

CHUNK = 65_536
EVENTS = 200


def test_report_lists_a_bounded_number_of_times() -> None:
    """The first ones in order; every count stays exact."""
    chunks = [("first_token" if n == 0 else "token", 10 + n, {"count": CHUNK}) for n in range(EVENTS)]
    report = replay_request_events([*to_prefill(), *trace(*chunks, ("complete", 1000))])
    listed = [10] * CHUNK + [11] * CHUNK + [12] * CHUNK
    assert report["token_times"] == listed
    assert (len(listed), report["token_times_dropped"]) == (MAX_TOKEN_TIMES, (EVENTS - 3) * CHUNK)
    assert (report["output_tokens"], report["choices"][0]["tokens"]) == (EVENTS * CHUNK, EVENTS * CHUNK)
    assert compute_request_metrics(report)["token_span"] == EVENTS - 1


def test_single_tokens_are_all_listed() -> None:
    """A long answer of single tokens is below the bound and loses nothing."""
    events = [
        *to_prefill(),
        *trace(("first_token", 7), *(("token", 8 + n) for n in range(20_000)), ("complete", 10**6)),
    ]
    report = replay_request_events(events)
    assert ("token_times_dropped" in report, report["token_times"]) == (False, list(range(7, 20_008)))


def decoding(count: int | None = 1) -> Timeline:
    """Return a timeline that has put out its first tokens at 10,000 ns."""
    timeline = Timeline(SHAPES["default"])
    for event in ("arrive", "admit", "input_ready"):
        timeline.apply(event, 0)
    timeline.apply("first_token", 10_000, count)
    return timeline


def test_offsets_fill_one_mebibyte_at_most() -> None:
    """An attribute of 2 ** 20 characters; further tokens are counted."""
    timeline = decoding(CHUNK)
    for number in range(1, EVENTS):
        timeline.apply("token", 10_000 + 1000 * number, CHUNK)
    offsets = token_offsets(timeline)
    assert offsets is not None
    assert (len(offsets.packed), offsets.dropped) == (2**20, (EVENTS - 3) * CHUNK)
    numbers = unpack(f"<{MAX_TOKEN_TIMES}I", b64decode(offsets.packed))
    assert [numbers.count(microsecond) for microsecond in range(4)] == [CHUNK, CHUNK, CHUNK, 0]


def test_offsets_count_tokens_without_a_time() -> None:
    """The reader can say how many of the tokens have one."""
    timeline = decoding()
    timeline.apply("token", None)
    timeline.apply("token", 13_000)
    assert token_offsets(timeline) == TokenOffsets(packed="AAAAAAMAAAA=", dropped=1)


def test_no_offsets_between_clocks_that_are_apart() -> None:
    """An offset is a duration too."""
    timeline = decoding()
    timeline.apply("token", 5_000, remote=True)
    assert (timeline.clocks_apart(), token_offsets(timeline)) == (True, None)


def test_violations_wait_for_their_owner() -> None:
    """They are handed over once, in order; a checker that nobody asks keeps a bounded number and counts all."""
    checker = Checker(decoding())
    for _ in range(MAX_WAITING + 10):
        checker.apply("admit", 1)
    checker.apply("token", 1)
    taken = checker.take_violations()
    assert (len(taken), taken[0]) == (MAX_WAITING, Violation("illegal_transition", "decode", "admit"))
    assert (checker.take_violations(), dict(checker.counts)) == (
        (),
        {"illegal_transition": MAX_WAITING + 10, "non_monotonic_time": 1},
    )
