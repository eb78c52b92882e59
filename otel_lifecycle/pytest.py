"""Tests of a server's own instrumentation: what its requests went through, read in the test's process.

Switch it on by its fixture, in ``conftest.py`` or in the test module::

    from otel_lifecycle.pytest import lifecycle_requests

and ask for the fixture::

    def test_chat_is_instrumented(client, lifecycle_requests):
        client.post("/chat", json={"prompt": "hello"})
        lifecycle_requests.assert_legal()
        lifecycle_requests.assert_completed(1)

Nothing is exported and no receiver is needed.  The server runs in the process of the test, in any thread.  With
``OTEL_LIFECYCLE_STRICT=true`` and ``configure()``, an illegal transition raises where it is made.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, overload

import pytest

from otel_lifecycle import semconv
from otel_lifecycle._core.attributes import DURATIONS
from otel_lifecycle._core.lifecycle import SHAPES, transition_error
from otel_lifecycle._runtime import runtime

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from otel_lifecycle._test_collector import Collector

__all__ = ["LifecycleRequests", "ObservedRequest", "ObservedViolation", "lifecycle_requests"]

# Long enough for a loaded machine; a test that passes waits only until its requests have ended.
WAIT_S: Final = 5.0
POLL_S: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedViolation:
    """An illegal event: its kind, the state it came in, and what was legal there where the table says so."""

    kind: str
    state: str | None
    event: str | None
    rule: str | None

    def __str__(self) -> str:
        return f"{self.kind}: {self.rule or ' '.join(filter(None, (self.event, self.state))) or 'no details'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRequest:
    """A request that has ended.  ``seconds``: the durations that are known, by their names in the contract."""

    name: str
    request_id: str | None
    model: str | None
    outcome: str
    reason: str | None
    failure_stage: str | None
    bottleneck: str | None
    events: tuple[str, ...]
    seconds: Mapping[str, float]
    violations: tuple[ObservedViolation, ...]
    attributes: Mapping[str, Any]

    def __str__(self) -> str:
        named = f" {self.request_id}" if self.request_id else ""
        return f"{self.name}{named}: {self.outcome}{f' ({self.reason})' if self.reason else ''}"


class LifecycleRequests(Sequence[ObservedRequest]):
    """The requests that ended since the fixture was set up, in the order they ended."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    @overload
    def __getitem__(self, index: int) -> ObservedRequest: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ObservedRequest]: ...
    def __getitem__(self, index: int | slice) -> ObservedRequest | Sequence[ObservedRequest]:
        return self._ended()[index]

    def __len__(self) -> int:
        return len(self._ended())

    @property
    def open(self) -> int:
        """How many requests have begun and not ended."""
        # Handles that were dropped end in the housekeeping, and a test cannot wait for its next turn.
        runtime().housekeep(now=True)
        return self._collector.open

    def wait_for(self, count: int, timeout: float = WAIT_S) -> None:
        """Return once ``count`` requests have ended; AssertionError if they have not after ``timeout`` seconds."""
        until = time.monotonic() + timeout
        while len(self) < count:
            if time.monotonic() >= until:
                raise AssertionError(f"{len(self)} of {count} requests have ended; open: {self.open}")
            time.sleep(POLL_S)

    def assert_legal(self) -> None:
        """Every request made legal transitions only; AssertionError names each violation and the rule it broke.

        No request at all is an error too: a test of instrumentation that sees none proves nothing.
        """
        ended = self._some()
        broken = [f"{request}\n    {one}" for request in ended for one in request.violations]
        if broken:
            raise AssertionError("illegal transitions:\n  " + "\n  ".join(broken))

    def assert_completed(self, count: int | None = None) -> None:
        """Every request has ended as completed, ``count`` of them where it is given; AssertionError otherwise."""
        ended = self._some()
        others = [str(request) for request in ended if request.outcome != "completed"]
        others += [f"open requests: {self.open}"] if self.open else []
        if others:
            raise AssertionError("not completed:\n  " + "\n  ".join(others))
        if count is not None and len(ended) != count:
            raise AssertionError(f"completed requests: {len(ended)}, not {count}")

    def _some(self) -> list[ObservedRequest]:
        ended = self._ended()
        if not ended and not self.open:
            raise AssertionError(
                "no request was seen: the server opens none, or it runs in another process, or the sampler of its"
                " tracer provider dropped it"
            )
        return ended

    def _ended(self) -> list[ObservedRequest]:
        runtime().housekeep(now=True)
        return [observed(span) for span in self._collector.ended()]


def observed(span: ReadableSpan) -> ObservedRequest:
    """Return the request that a judged span tells of."""
    own: Mapping[str, Any] = span.attributes or {}
    return ObservedRequest(
        name=span.name,
        request_id=own.get(semconv.REQUEST_ID),
        model=own.get(semconv.GEN_AI_REQUEST_MODEL),
        outcome=own[semconv.OUTCOME],
        reason=own.get(semconv.END_REASON, own.get(semconv.ERROR_TYPE)),
        failure_stage=own.get(semconv.FAILURE_STAGE),
        bottleneck=own.get(semconv.BOTTLENECK),
        events=tuple(event.name for event in span.events if event.name != semconv.VIOLATION_SPAN_EVENT),
        seconds={name: own[attribute] for name, attribute in DURATIONS.items() if attribute in own},
        violations=tuple(_violations(span, own.get(semconv.SHAPE))),
        attributes=own,
    )


def _violations(span: ReadableSpan, shape: object) -> Iterator[ObservedViolation]:
    for event in span.events:
        if event.name == semconv.VIOLATION_SPAN_EVENT:
            told: Mapping[str, Any] = event.attributes or {}
            state, name = told.get(semconv.VIOLATION_STATE), told.get(semconv.VIOLATION_EVENT)
            yield ObservedViolation(
                kind=str(told.get(semconv.VIOLATION_KIND)), state=state, event=name, rule=_rule(shape, state, name)
            )


def _rule(shape: object, state: str | None, event: str | None) -> str | None:
    """Return what was legal in that state, if the event was not."""
    known = SHAPES.get(str(shape), SHAPES["default"])
    # The table knows the rule for a transition only; a time that goes back, for example, breaks none of its rows.
    if state is None or event is None or event in known.table.get(state, {event: ""}):
        return None
    return str(transition_error(known, state, event))


@pytest.fixture
def lifecycle_requests() -> Iterator[LifecycleRequests]:
    """The requests of this test; the lifecycle processor is added to the tracer provider if it has none."""
    # Imported here: a conftest.py loads this module in every run, and only tests that ask need the SDK.
    from otel_lifecycle._test_collector import collecting

    with collecting() as collector:
        yield LifecycleRequests(collector)
