"""Parts of a request: work of it that queues, runs and ends by itself, while the request ends once.

A batch that takes some of a request's inputs, one of several passes, one of ``n`` answers that an engine runs apart.

How it works.  A part is a request of role ``part``; its span is a child of the whole's.  What it marks moves the whole
too, if that is news there: the first part that is admitted ends the queue of the whole, and the first output of any
part is that of the whole.  When a part has ended, its tokens become one choice of the whole, each at its own time.
Metrics are those of the whole: with the parts beside it, one request would count several times.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from opentelemetry.trace import INVALID_SPAN, Span, set_span_in_context

from otel_lifecycle._core.lifecycle import BOUNDARIES, Shape
from otel_lifecycle._core.timeline import Timeline
from otel_lifecycle._core.values import MAX_CHOICES, check_choice
from otel_lifecycle._keywords import plain_names
from otel_lifecycle._log import say
from otel_lifecycle._request.clock import AtNs, anchor, arrival_of
from otel_lifecycle._request.conditions import given
from otel_lifecycle._request.span_writer import start_request_span
from otel_lifecycle._request.tracked import TrackedRequest
from otel_lifecycle._runtime import Runtime, with_claim
from otel_lifecycle.errors import EventAfterTerminal, InvalidValue


class WholeFeed:
    """Moves the whole with one of its parts.  ``led``: the whole had its first token from this part."""

    __slots__ = ("_choice", "_part", "_of", "led")

    def __init__(self, whole: TrackedRequest, part: Timeline, choice: int) -> None:
        self._of = whole
        self._part = part
        self._choice = choice
        self.led = False

    def move(self, state: str, at: int | None) -> None:
        """The part is in ``state`` since ``at``, a reading of the monotonic clock; None: unknown."""
        event = "output" if self._part.output_seen and state == "decode" else _event_into(self._part.shape, state)
        if event is None:
            return
        # A time by the engine's clock says nothing on the clock of the whole.
        known = None if BOUNDARIES.get(event) in self._part.remote else at
        self.led = bool(self._of.follow(event, known, self._choice)) and event == "first_token"


class TrackedPart(TrackedRequest):
    """One part of a request."""

    __slots__ = ("_choice", "_feed", "_of")

    # Set by :func:`open_part`, which made it.
    _choice: int
    _of: TrackedRequest | None
    _feed: WholeFeed

    def belong(self, whole: TrackedRequest, choice: int) -> None:
        """Be a part of a request, ``choice`` of its answers."""
        self._of = whole
        self._choice = choice

    def _enter_engine(self, here: Runtime) -> None:
        # The whole has the seat in the log of the engine: it competes once.
        if self._of is not None:
            self.state.feed = self._feed = WholeFeed(self._of, self.state.timeline, self._choice)

    def _after_call(self) -> None:
        if self.whole is not None and self.state.status is not None and self._of is not None:
            # Taken off first: another thread may come past here, and the whole must not be kept alive by its parts.
            whole, self._of = self._of, None
            whole.take_part(self, self._choice, led=self._feed.led)
        super()._after_call()


def open_part(whole: TrackedRequest, choice: object, arrived_at_ns: AtNs, more: Mapping[str, object]) -> TrackedPart:
    """Open a part of a request; it has its own handle, and the assessor of the whole."""
    if whole.ended:
        what = "a part after the end"
        whole.violate(EventAfterTerminal(what, state=whole.state.name, event="part"))
    number = _choice_of(whole, choice)
    shape = whole.state.timeline.shape
    opened, offset = anchor()
    source = whole.source
    kind, wrong = source.read_kind(shape, {**_inherited(whole), **given(plain_names(more)), "role": "part"})
    context = set_span_in_context(whole.span, whole.parent)
    start = offset + arrival_of(arrived_at_ns, opened, offset)
    span: Span = INVALID_SPAN
    try:
        claiming = with_claim(context, [])
        span = start_request_span(source, context, claiming, kind, None, start, choice=number)
    except Exception as error:  # noqa: BLE001  # a sampler's or another processor's; without a span the part goes on
        say("start_span", "the span of a part could not be started", level=logging.ERROR, error=error)
    part = TrackedPart(kind, opened, offset, source, context, span, whole.assessor, False, False)
    part.belong(whole, number)
    whole.state.parts.append(part)
    for invalid in wrong:
        whole.violate(invalid)
    return part


def _choice_of(whole: TrackedRequest, choice: object) -> int:
    """Return the number of a part: the one given, else the next."""
    number = min(whole.next_part(), MAX_CHOICES - 1)
    try:
        return number if choice is None else check_choice(choice, "part")
    except InvalidValue as error:
        whole.violate(error)
        return number


def _inherited(whole: TrackedRequest) -> dict[str, Any]:
    labels = whole.labels
    names = ("operation", "provider", "model", "traffic", "unit")
    return given({name: getattr(labels, name) for name in names})


def _event_into(shape: Shape, state: str) -> str | None:
    """Return the event that enters a state of the usual way; None for one beside it, such as preempted."""
    events = (row.event for row in shape.rows if row.next == state and row.event in BOUNDARIES)
    return next(events, None)
