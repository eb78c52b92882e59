"""The end of a request that stayed in its course: interrupted, looked at meanwhile, or failed in the middle."""

from __future__ import annotations

import gc
import sys
import time
import weakref
from collections.abc import Callable
from threading import Thread
from types import FrameType
from typing import Any

import pytest
from opentelemetry.sdk.trace import Span
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

from otel_lifecycle._request import plain_end
from otel_lifecycle._request.opening import open_request
from otel_lifecycle._runtime import runtime
from otel_lifecycle.errors import EventAfterTerminal
from tests.support.telemetry import Telemetry


def in_decode(telemetry: Telemetry) -> Any:
    """Return a request with two tokens."""
    runtime().seen_with(telemetry.tracer_provider, telemetry.processor)
    request = telemetry.request()
    request.admit()
    request.input_ready()
    request.first_token()
    request.token()
    return request


def at_once(request: Any, call: Callable[[], object]) -> None:
    """Make a call on two threads, both of which wait for the request when it is let go."""
    lock = request._tracked._lock
    with lock:
        threads = [Thread(target=call) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
    for thread in threads:
        thread.join(60)


def test_two_threads_that_complete_it_leave_one_whole_span(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who comes second does not end the span while the first one writes it."""
    request, add = in_decode(telemetry), Span.add_event

    def slowly(*given: Any, **named: Any) -> None:
        time.sleep(0.02)
        add(*given, **named)

    monkeypatch.setattr(Span, "add_event", slowly)
    at_once(request, lambda: request.complete(if_open=True))
    span = telemetry.span("chat")
    assert [event["name"] for event in span["events"]] == ["arrive", "admit", "input_ready", "first_token", "complete"]
    assert span["attributes"]["inference.outcome"] == "completed"


@pytest.mark.parametrize("sampler", [ALWAYS_ON, ALWAYS_OFF])
def test_the_second_of_two_ends_is_counted(make_telemetry: Callable[..., Telemetry], sampler: Any) -> None:
    """Also where both threads have found the request open."""
    telemetry = make_telemetry(sampler=sampler)
    request = in_decode(telemetry)
    at_once(request, request.complete)
    counted = [
        (point["attributes"]["inference.violation.kind"], point["value"])
        for point in telemetry.points("inference.transition.violations")
    ]
    assert counted == [("duplicate_terminal", 1)]


@pytest.mark.parametrize("how", ["request", "open_request"])
def test_a_request_with_an_impossible_condition_is_freed_with_its_handle(telemetry: Telemetry, how: str) -> None:
    """What was wrong holds no frame that holds the handle: nothing waits for the cyclic collector."""
    gc.disable()
    try:
        if how == "request":
            request = telemetry.request(max_tokens=-3)
        else:
            request = open_request({"max_tokens": -3}, tracer_provider=telemetry.tracer_provider)
        handle = weakref.ref(request)
        del request
        runtime().housekeep(now=True)
        assert handle() is None
    finally:
        gc.enable()
    assert telemetry.span("chat")["attributes"]["inference.outcome"] == "incomplete"


@pytest.mark.parametrize("what", ["set_attributes", "add_event"])
def test_blocks_have_their_spans_where_the_request_cannot_be_written(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A span class of somebody's own that raises costs the request its attributes, and nobody a span."""

    def fail(*given: object, **named: object) -> None:
        raise ValueError

    request = telemetry.request()
    for stage in ("queue", "preprocessing"):
        with request.stage(stage):
            pass
    request.token()
    with monkeypatch.context() as patched:
        patched.setattr(Span, what, fail)
        request.complete()
    assert sorted(span["name"] for span in telemetry.spans()) == ["chat", "preprocessing", "queue"]


@pytest.mark.parametrize("sampler", [ALWAYS_ON, ALWAYS_OFF])
def test_a_block_says_nothing_of_stages_that_nobody_marks(
    make_telemetry: Callable[..., Telemetry], sampler: Any
) -> None:
    """The stage of such a request stays unknown, and its shape is that of the block."""
    telemetry = make_telemetry(sampler=sampler)
    runtime().seen_with(telemetry.tracer_provider, telemetry.processor)
    request = open_request({}, tracer_provider=telemetry.tracer_provider, unmarked=True)
    with request.stage("queue"):
        active = telemetry.points("inference.active_requests")
        request._tracked.follow_shape("preprocess_first")
    assert [point["attributes"]["inference.stage"] for point in active if point["value"]] == ["unknown"]
    assert request._tracked.shape.name == "default"


def test_tokens_are_counted_once_whatever_breaks_the_end_off(make_telemetry: Callable[..., Telemetry]) -> None:
    """An exception out of a signal handler, at each line of the close: none of its tokens is taken for a late one."""
    for number in range(1, 40):
        telemetry, left = make_telemetry(sampler=ALWAYS_OFF), number

        def interrupt(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal left
            if frame.f_code.co_filename != plain_end.__file__ and frame.f_code.co_name != "_leave_late":
                return None
            left -= event == "line" and not left <= 0
            if event == "line" and left == 0:
                left = -1
                raise KeyboardInterrupt
            return interrupt

        request, before = in_decode(telemetry), sys.gettrace()
        sys.settrace(interrupt)
        try:
            request.complete()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        request.complete(if_open=True)
        runtime().housekeep(now=True)
        directions = [
            point["attributes"]["inference.token.direction"] for point in telemetry.points("inference.tokens")
        ]
        assert "wasted" not in directions, number
        telemetry.shutdown()
        if left > 0:
            break
    assert number > 20


def test_metrics_are_handed_over_while_other_calls_may_come_in(
    make_telemetry: Callable[..., Telemetry], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fold calls other people's code, which may wait for a thread that looks at this request."""
    telemetry = make_telemetry(sampler=ALWAYS_OFF)
    request, shown = in_decode(telemetry), list[str]()

    def look(*given: object) -> None:
        thread = Thread(target=lambda: shown.append(request.state))
        thread.start()
        thread.join(60)

    monkeypatch.setattr(telemetry.processor, "take_usual", look)
    request.complete()
    assert shown == ["completed"]


def test_what_comes_after_the_end_of_a_pooling_request_is_counted(telemetry: Telemetry) -> None:
    """Its handle is not watched any more: it is freed at once, and what its marks said is in the metrics."""
    gc.disable()
    try:
        request: Any = telemetry.request(shape="pooling")
        request.admit()
        request.input_ready()
        request.complete()
        freed = weakref.ref(request)
        request.admit()
        request.token(3)
        assert runtime().open_requests[request._tracked.ticket] is request._tracked
        del request
        assert freed() is None
        assert not runtime().dropped
        kinds = [
            point["attributes"]["inference.violation.kind"]
            for point in telemetry.points("inference.transition.violations")
        ]
        assert kinds == ["event_after_terminal"]
        (wasted,) = telemetry.points("inference.tokens")
        assert (wasted["attributes"]["inference.token.direction"], wasted["value"]) == ("wasted", 3)
    finally:
        gc.enable()


def test_a_token_after_the_end_of_a_pooling_request_is_counted_where_it_raises(
    make_telemetry: Callable[..., Telemetry],
) -> None:
    """A strict processor raises at the mark, and the token is wasted all the same."""
    telemetry = make_telemetry(strict=True)
    request: Any = telemetry.request(shape="pooling")
    request.admit()
    request.input_ready()
    request.complete()
    with pytest.raises(EventAfterTerminal):
        request.token(3)
    del request
    assert telemetry.point("inference.tokens", inference__token__direction="wasted")["value"] == 3
