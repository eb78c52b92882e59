"""Fixtures of the whole suite.

``telemetry`` is a fresh set of providers around a LifecycleSpanProcessor, ``make_telemetry`` makes others;
``otlp_grpc``, ``otlp_http`` and ``otlp`` (each in turn) are real receivers on loopback; ``fresh_globals`` gives the
test a process without global providers.  Every test starts without OTEL_* variables.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from otel_lifecycle._guard import guard
from otel_lifecycle._runtime import runtime
from tests.support.threads import exporting, still_running

if TYPE_CHECKING:
    from tests.support.otlp_receiver import GrpcReceiver, HttpReceiver, OtlpReceiver
    from tests.support.telemetry import Telemetry

# No deadline: the machines that run this are shared, and time says nothing about right and wrong. In CI the same
# examples each time, so that a failure is the change's own; elsewhere new ones, to find what nobody thought of.
# The quick suite tries a quarter of the examples that `make test-slow` tries (`--hypothesis-profile=thorough`).
settings.register_profile("thorough", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("default", settings.get_profile("thorough"), max_examples=25)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# What is imported stays, so the collector would walk it again and again for nothing. It is on before the first test.
gc.disable()

# A fault of our own is raised again, so that the guard hides none from a test.
guard.reraise = True


SLOW_FOLDERS = frozenset({"faults", "soak"})
"""Tests of whole processes that are killed, starved and soaked: `make test-slow` runs them all."""

PROCESS_FOLDERS = frozenset({"demo", "integration", "live"})
"""Tests of servers, programs and browsers: `make test-process` runs them all."""

STARTS = frozenset({"os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen"})
"""The audit events of Python by which a process starts another one."""

OUTSIDE = ("process", "slow", "stack", "demo", "bench")
"""The markers of tests that may start processes."""

_started: list[str] = []


def _watch(
    event: str, _: object, starts: frozenset[str] = STARTS, append: Callable[[str], None] = _started.append
) -> None:
    # What it needs is bound to it: at the exit of Python the names of this module are gone.
    if event in starts:
        append(event)


# An audit hook cannot be removed, so it only takes a note; the fixture below judges it.
sys.addaudithook(_watch)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow or as process what a folder or a file says, before the markers select the tests."""
    for item in items:
        folder = item.path.parent.name
        if folder in SLOW_FOLDERS or item.path.name.startswith("test_processes"):
            item.add_marker(pytest.mark.slow)
        elif folder in PROCESS_FOLDERS:
            item.add_marker(pytest.mark.process)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Take everything that importing left out of the collector's sight.

    Many tests collect by hand, and each full collection would walk a million objects of libraries.
    """
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _around_each_test(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start each test in the same state, and hold it to what it may leave.

    One fixture, because there are thousands of tests, and each further fixture of all of them costs seconds.
    """
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    # Loopback traffic stays off any proxy.
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1,localhost")
    # Empty logs of the engines: requests of other tests are not neighbours.
    runtime().engines = runtime().engines.fresh()
    # A test's server may change logging: a Celery worker sets the level of the root logger.
    root = logging.getLogger()
    level, handlers, disabled = root.level, list(root.handlers), logging.root.manager.disable
    _started.clear()
    before = exporting()
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
    logging.disable(disabled)
    if _started and not any(map(request.node.get_closest_marker, OUTSIDE)):
        pytest.fail("this test starts a process: mark it with pytest.mark.process")
    # A thread that still retries would log its lines in another test, and hold what it sends.
    left = still_running(exporting() - before)
    assert left == [], "shut down what this test has configured, and answer its exporters before their receiver goes"


@pytest.fixture
def fresh_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the test set the global tracer and meter provider, and undo it."""
    from tests.support.telemetry import forget_global_providers

    forget_global_providers(monkeypatch)


@pytest.fixture
def make_telemetry() -> Iterator[Callable[..., Telemetry]]:
    """Make Telemetry with arguments of one's own; all of them are shut down when the test ends."""
    from tests.support.telemetry import Telemetry

    with ExitStack() as stack:

        def make(**arguments: Any) -> Telemetry:
            telemetry = Telemetry(**arguments)
            stack.callback(telemetry.shutdown)
            return telemetry

        yield make


@pytest.fixture
def telemetry(make_telemetry: Callable[..., Telemetry]) -> Telemetry:
    """Fresh providers around a LifecycleSpanProcessor with its defaults."""
    return make_telemetry()


@pytest.fixture
def otlp_grpc() -> Iterator[GrpcReceiver]:
    """An OTLP receiver over gRPC."""
    from tests.support.otlp_receiver import GrpcReceiver

    with GrpcReceiver() as receiver:
        yield receiver


@pytest.fixture
def otlp_http() -> Iterator[HttpReceiver]:
    """An OTLP receiver over HTTP."""
    from tests.support.otlp_receiver import HttpReceiver

    with HttpReceiver() as receiver:
        yield receiver


@pytest.fixture(params=["grpc", "http"])
def otlp(request: pytest.FixtureRequest) -> OtlpReceiver:
    """An OTLP receiver, once over each transport."""
    receiver: OtlpReceiver = request.getfixturevalue(f"otlp_{request.param}")
    return receiver
