"""What a status, a reason, a finish reason or a deadline says of the end of a request."""

from __future__ import annotations

from http import HTTPStatus

import pytest

from otel_lifecycle import semconv
from otel_lifecycle._core.endings import (
    Terminal,
    cancellation,
    of_finish_reason,
    of_status,
    past,
    read_status,
    timeout,
)

from .endings import CANCELLED, DEADLINE, SHUTDOWN, TIMED_OUT, Text, by_reason, by_type

STATUS_VALUES = [
    (200, 200),
    ("200", 200),
    ("200 OK", 200),
    (HTTPStatus.OK, 200),
    (True, None),
    (99, None),
    (600, None),
    (10**5000, None),
    ("2000", None),
    ("", None),
    (Text("404"), 404),
    (200.0, None),
    (None, None),
    (object(), None),
]


@pytest.mark.parametrize(("value", "status"), STATUS_VALUES, ids=range(len(STATUS_VALUES)))
def test_a_status_is_a_number_or_begins_with_one(value: object, status: int | None) -> None:
    """Anything else is none, and raises nothing."""
    assert read_status(value) == status


def test_every_status_ends_a_request() -> None:
    """Answered below 300, sent elsewhere below 400, else by the table or by the status itself."""
    assert [of_status(status) for status in (200, 204, 307, 418, 502)] == [
        Terminal(event="complete"),
        Terminal(event="complete"),
        CANCELLED,
        by_type("418"),
        by_type("502"),
    ]


WORDS = [
    (None, Terminal("complete")),
    ("stop", Terminal("complete")),
    ("a word of its own", Terminal("complete")),
    (7, Terminal("complete")),
    ("abort", CANCELLED),
    ("Cancelled", CANCELLED),
    ("timeout", TIMED_OUT),
    ("deadline_exceeded", DEADLINE),
    ("queue_timeout", Terminal("timeout", "queue_timeout", "timeout")),
    ("error", by_reason("engine_error")),
    (Text("shutdown"), SHUTDOWN),
]


@pytest.mark.parametrize(("word", "ending"), WORDS, ids=range(len(WORDS)))
def test_an_engines_word_stands_for_an_end(word: object, ending: Terminal) -> None:
    """A word nobody knows is a normal completion."""
    assert of_finish_reason(word) == ending


def test_what_is_known_of_a_failure_goes_with_the_word() -> None:
    """The error decides the type; it changes nothing of an end that is not a failure."""
    assert [of_finish_reason("error", ValueError()), of_finish_reason("stop", ValueError())] == [
        by_type("ValueError"),
        Terminal("complete"),
    ]


def test_every_reason_of_the_closed_list_is_a_word() -> None:
    """The end has that reason."""
    assert {word: of_finish_reason(word).reason for word in semconv.REASONS} == {word: word for word in semconv.REASONS}


def test_the_deadline_comes_ten_milliseconds_or_one_percent_early() -> None:
    """Whichever is more."""
    assert [
        past(elapsed, deadline)
        for elapsed, deadline in (
            (10**12, None),
            (89_999_999, 0.1),
            (90_000_000, 0.1),
            (9_899_999_999, 10.0),
            (9_900_000_000, 10.0),
        )
    ] == [False, False, True, False, True]


def test_reasons_outside_the_closed_list_are_other() -> None:
    """So are values that are not text."""
    assert [cancellation("lost"), cancellation(Text("shutdown")), cancellation(), timeout(7)] == [
        Terminal(event="cancel", reason=semconv.OTHER),
        SHUTDOWN,
        CANCELLED,
        Terminal(event="timeout", reason=semconv.OTHER, error_type="timeout"),
    ]
