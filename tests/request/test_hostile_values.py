"""Values from outside may be anything: none of them, in any argument, makes our code raise or leaves a request open."""

from __future__ import annotations

import builtins
import contextlib
import inspect
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import otel_lifecycle as lifecycle
from otel_lifecycle import driver
from otel_lifecycle._guard import guard
from otel_lifecycle.errors import ConfigurationError
from otel_lifecycle.types import Request
from tests.support.hostile import VALUES, OddError
from tests.support.telemetry import Telemetry

METHODS = {
    name: method
    for name, method in vars(Request).items()
    if inspect.isfunction(method) and (not name.startswith("_")) and name not in {"stream", "stage"}
}

# By name: pytest looks at its parameters, and these do not like that.
every_value = pytest.mark.parametrize("kind", VALUES)


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_the_handle(telemetry: Telemetry, name: str) -> None:
    """Every argument of every method takes every value; the request still ends, and nothing was a fault of ours."""
    faults = guard.faults
    parameters = [one for one in inspect.signature(METHODS[name]).parameters.values() if one.name != "self"]
    # In one test and not in one for each value: the providers of a test cost more than its calls.
    for (kind, value), parameter in itertools.product(VALUES.items(), parameters):
        keyword = "model" if parameter.kind is parameter.VAR_KEYWORD else parameter.name
        request = telemetry.request()
        request.admit()
        request.input_ready()
        with contextlib.suppress(ConfigurationError):
            made = call(getattr(request, name), parameter, keyword, value)
            if hasattr(made, "__enter__"):
                with made:
                    pass
        request.cancel(if_open=True)
        assert (request.ended, guard.faults) == (True, faults), (kind, parameter.name)
    assert telemetry.points("inference.requests") or not parameters


def call(method: Callable[..., Any], parameter: inspect.Parameter, keyword: str, value: Any) -> Any:
    """Give one argument, and those that have no default."""
    if parameter.kind is parameter.POSITIONAL_ONLY:
        return method(value)
    needed = {
        name: "x"
        for name, other in inspect.signature(method).parameters.items()
        if other.default is other.empty and other.kind is other.POSITIONAL_OR_KEYWORD
    }
    return method(**{**needed, keyword: value})


@every_value
def test_arguments_of_request(telemetry: Telemetry, kind: str) -> None:
    """A condition that cannot be is a violation; a shape, role or provider that cannot be is refused at the call."""
    value = VALUES[kind]
    for name in inspect.signature(lifecycle.request).parameters:
        if name == "tracer_provider":
            continue
        try:
            request = telemetry.request(**{name: value})
        except ConfigurationError:
            assert name in {"shape", "role"}
            continue
        request.cancel()
        assert request.ended


@every_value
def test_fields_of_recorded_events(telemetry: Telemetry, kind: str) -> None:
    """Each field of an event, the event, and the iterable itself."""
    value = VALUES[kind]
    request = telemetry.request()
    for field in ("event", "timestamp", "count", "choice", "error", "reason", "id", "input_tokens"):
        for event in ("token", "usage", "response", "delivered"):
            request.record([{"event": event, "timestamp": time.time_ns(), field: value}])
    request.record([value])
    request.record(value)
    request.record([{"event": "fail", "timestamp": value, "error": value}])
    request.cancel(if_open=True)
    assert request.ended


@every_value
def test_items_counters_steps_and_drivers(telemetry: Telemetry, kind: str) -> None:
    """What a stream yields, what its counter gives, what a batch holds, and what a driver is told."""
    value = VALUES[kind]
    with telemetry.request() as request:
        assert len(list(request.stream([value, value], tokens=lambda item: value))) == 2
    assert request.ended
    request = telemetry.request()
    lifecycle.step([request, value])
    lifecycle.step([request], counts=[value], at_ns=value)
    drive = driver.adopt(request, owned=True)
    drive.mark("admit", at_ns=value)
    drive.mark("preempt", at_monotonic_ns=value)
    drive.item(value, value, at_ns=value)
    drive.answer(value)
    drive.suggest(model=value, input_tokens=value)
    drive.finish(value, error=value, at_ns=value)
    request.cancel(if_open=True)
    driver.begin(model=value, parent=value, join=False, tracer_provider=telemetry.tracer_provider).end(None)
    assert request.ended


def grouped(depth: int) -> BaseException:
    """A group in a group, that deep."""
    groups: Any = getattr(builtins, "ExceptionGroup", None) or pytest.skip("groups come with Python 3.11")
    group: BaseException = ValueError("leaf")
    for _ in range(depth):
        group = groups("nested", [group])
    return group


class OddModule(Exception):
    """Its class has no module that could be a name."""


OddModule.__module__ = 5  # type: ignore[assignment]  # on purpose


class OddMembers(Exception):
    """It looks like a group and is none."""

    @property
    def exceptions(self) -> Any:
        """Raise."""
        raise RuntimeError


ERRORS: dict[str, Callable[[], BaseException]] = {
    "odd attributes": OddError,
    "odd module": OddModule,
    "odd members": OddMembers,
    "deep group": lambda: grouped(1200),
}


@pytest.mark.parametrize("make", ERRORS.values(), ids=ERRORS.keys())
@pytest.mark.parametrize("way", ["block", "stream", "stage", "phase", "traced", "driver"])
def test_hostile_exceptions_go_on_unchanged(telemetry: Telemetry, way: str, make: Callable[[], BaseException]) -> None:
    """The server gets its own exception, and the request has failed."""
    error = make()

    def broken() -> Iterator[int]:
        yield 1
        raise error

    def serve() -> None:
        if way == "traced":
            list(lifecycle.traced(tracer_provider=telemetry.tracer_provider)(broken)())
        elif way == "driver":
            drive = driver.begin(tracer_provider=telemetry.tracer_provider)
            drive.run(lambda: list(broken()))
        else:
            with telemetry.request() as request:
                if way == "stream":
                    list(request.stream(broken()))
                elif way == "block":
                    list(broken())
                else:
                    with getattr(request, way)("queue"):
                        list(broken())

    caught: BaseException | None = None
    try:
        serve()
    except BaseException as raised:  # noqa: BLE001  # it is compared by identity
        caught = raised
    assert caught is error
    assert telemetry.span("chat")["attributes"]["inference.outcome"] == "failed"


def test_the_guard_counts_in_service_and_raises_in_tests(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault of our own is raised again here; in service it is counted and logged, and the server goes on."""
    request = telemetry.request()

    def broken(*arguments: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(type(request._tracked.state), "note", broken)
    with pytest.raises(ZeroDivisionError):
        request.client_disconnected()
    monkeypatch.setattr(guard, "reraise", False)
    before = guard.faults
    request.client_disconnected()
    request.cancel()
    assert (guard.faults - before, request.outcome) == (1, "cancelled")
    assert "fault of otel-lifecycle" in caplog.text
