"""Streams that the network cut anywhere, and what a reader of frames holds at most (C94, C95)."""

from __future__ import annotations

import json
from time import process_time
from typing import Any

import pytest

from otel_lifecycle._frames import dialects
from otel_lifecycle.openai import FrameFeed, count_tokens, read_frame
from tests.cases.test_frames import ROLE, figures, streamed
from tests.openai_frames import chat, sse, usage
from tests.support.telemetry import Telemetry

STREAM = "".join(
    (
        sse(ROLE),
        sse(chat({"content": "a"})),
        sse(chat({"content": "b"})),
        sse(chat({}, finish_reason="stop")),
        sse(usage(5, 2)),
        "data: [DONE]\n\n",
    )
)


def by_size(text: str, size: int) -> list[str]:
    """Cut a text into pieces of one size."""
    return [text[start : start + size] for start in range(0, len(text), size)]


CUTS: dict[str, list[str]] = {
    "events": [f"{event}\n\n" for event in STREAM.split("\n\n") if event],
    "lines": STREAM.splitlines(keepends=True),
    "lines without their ends": STREAM.splitlines(),
    "inside the role frame": [STREAM[:20], *[f"{event}\n\n" for event in STREAM[20:].split("\n\n") if event]],
    "7 bytes": by_size(STREAM, 7),
    "1 byte": by_size(STREAM, 1),
    "all in one": [STREAM],
}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("cut", CUTS)
def test_c94_c95_a_stream_may_be_cut_anywhere(telemetry: Telemetry, cut: str, end: str) -> None:
    """Two tokens and an output of two, however the pieces come and whatever ends the lines."""
    pieces = CUTS[cut]
    if end != "\n":
        whole = STREAM.replace("\n", end)
        size = max(1, len(pieces[0]))
        pieces = by_size(whole, size)
    attributes = streamed(telemetry, *(piece.encode() for piece in pieces))
    assert figures(attributes) == (5, 2, 2)
    assert attributes["gen_ai.response.finish_reasons"] == ["stop"]


def test_c94_a_piece_of_a_role_frame_is_no_first_token() -> None:
    """Nothing is marked before a frame is whole."""
    marks: list[Any] = []

    class Target:
        """Writes down its tokens."""

        def token(self, n: int | None = 1, choice: int = 0) -> None:
            """Write one down."""
            marks.append((n, choice))

        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: None

    feed = FrameFeed(Target())
    text = sse(ROLE)
    seen: list[int] = []
    for piece in (text[:9], text[9:40], text[40:], sse(chat({"content": "a"}))):
        feed(piece)
        seen.append(len(marks))
    assert seen == [0, 0, 0, 1]


def test_c95_an_event_is_its_joined_data_lines() -> None:
    """A document that spans data lines is one frame; two whole ones on neighbouring lines are two."""
    text = json.dumps(chat({"content": "a"}), indent=1)
    spread = "".join(f"data: {line}\n" for line in text.splitlines())
    assert count_tokens(f"{spread}\n") == 1
    assert count_tokens(f"data: {json.dumps(chat({'content': 'a'}))}\n" * 2) == 2


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of all texts that were parsed as JSON."""
    lengths: list[int] = []
    loads = json.loads

    def counting(text: str) -> Any:
        lengths.append(len(text))
        return loads(text)

    monkeypatch.setattr(dialects, "loads", counting)
    return lengths


@pytest.mark.parametrize("text", ["x" * 65_536, "}" * 65_536, '{"a":1},' * 8_192], ids=["text", "braces", "objects"])
def test_an_event_that_comes_byte_by_byte_is_parsed_a_bounded_number_of_times(parsed: list[int], text: str) -> None:
    """64 KiB in single bytes cost what they cost in one piece, give or take a few early attempts."""
    read = sse(chat({"content": text}))
    feed = FrameFeed(_Nothing())
    for character in read:
        feed(character)
    assert sum(parsed) <= 17 * len(read)
    assert feed._counted == {0: 1}


def cost(text: str) -> float:
    """Return the least CPU time of seven readings of a message, so that other threads' work does not count."""
    times = []
    for _ in range(7):
        began = process_time()
        FrameFeed(_Nothing())(text)
        times.append(process_time() - began)
    return min(times)


@pytest.mark.parametrize("line", ["1\n", "{\n", "[]\n", "data:{\n"])
def test_short_lines_in_one_message_cost_what_their_length_costs(parsed: list[int], line: str) -> None:
    """Sixteen times as many lines, of a document that never ends or of none, cost less than a hundred times as much.

    A cost that grows with the square would be 256 times as large; the room is for a noisy machine.
    """
    count = 2**12 // len(line)
    assert cost(line * 16 * count) < 100 * cost(line * count)
    assert parsed == []


def test_what_is_held_of_an_event_is_bounded() -> None:
    """An event that never ends is one token of unknown size, and the stream after it is read again."""
    feed = FrameFeed(_Nothing())
    for _ in range(64):
        feed("data: " + "x" * 8_192 if _ == 0 else "x" * 8_192)
    feed("\n\n" + sse(chat({"content": "a"})))
    assert feed._counted == {0: 1}


def test_the_choices_that_are_remembered_are_bounded() -> None:
    """Twenty thousand choices leave 128 finish reasons, and each frame costs the same."""
    feed = FrameFeed(_Nothing())
    for choice in range(20_000):
        feed(chat({"content": "a"}, index=choice, finish_reason="stop"))
    assert (len(feed._finished), len(feed._counted), len(feed._figures)) == (128, 128, 0)


def test_deep_json_does_not_raise() -> None:
    """A text nested deeper than the parser goes is of no known dialect."""
    assert read_frame("[" * 100_000).tokens == ()
    assert read_frame('data: {"a": ' + "[" * 20_000 + "]" * 20_000 + "}\n\n").known is False


class _Nothing:
    """A request that takes everything and does nothing."""

    def token(self, n: int | None = 1, choice: int = 0) -> None:
        """Take a token."""

    def output(self, tokens: int | None = None) -> None:
        """Take an answer."""

    def usage(self, **figures: int | None) -> None:
        """Take figures."""

    def response(self, **facts: Any) -> None:
        """Take facts."""

    def cancel(self, reason: str | None = None) -> None:
        """Take an end."""

    def timeout(self, reason: str | None = None) -> None:
        """Take an end."""

    def fail(self, error: str | None = None) -> None:
        """Take an end."""
