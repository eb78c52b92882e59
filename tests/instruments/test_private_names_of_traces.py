"""The trace SDK may rename any of its private names: spans, hooks and figures stay what they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from otel_lifecycle import _sdk_traces
from otel_lifecycle._sdk_traces import (
    Dropped,
    RebuiltSpan,
    endpoint_of,
    held_exporters,
    held_processors,
    spans_can_be_rebuilt,
)
from otel_lifecycle.processor import LifecycleSpanProcessor
from tests.instruments.renamed_traces import private_names
from tests.support.telemetry import Telemetry

Told = dict[str, Any]
ONCE_USED = ("_attributes", "_events", "_links", *(("_on_ending",) if hasattr(SpanProcessor, "_on_ending") else ()))
"""Names that the package has read, written or defined before; older SDKs lack the last one."""
SEEN_BY_DOCTOR = ("_active_span_processor", "_span_processors")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def served_without(*names: str) -> dict[str, Told]:
    """Return what came of each name when it was another one; the empty name is an SDK as it is."""
    program = [sys.executable, "-m", "tests.instruments.renamed_traces", "", *names]
    process = subprocess.run(program, capture_output=True, text=True, check=True, timeout=300)
    return {line["name"]: line for line in map(json.loads, process.stdout.splitlines())}


def check(told: dict[str, Told]) -> None:
    """Everything is as with the name, and nothing is said."""
    usual = told.pop("")
    dropped = [span["dropped"] for span in usual["spans"] if span["name"] == "theirs"]
    # Those of the provider with limits lost attributes, links and, where there were many, events.
    assert dropped == [[0, 0, 0], [0, 0, 0], [1, 0, 1], [1, 6, 1]]
    assert (usual["warnings"], usual["sees_processors"]) == ([], 1)
    for name, without in told.items():
        assert without.pop("name") == name
        assert without == {key: value for key, value in usual.items() if key != "name"}


@pytest.mark.process
@needs_fork
def test_names_that_were_once_used_may_go() -> None:
    """No name that the package relied on before is needed any more, nor all of them together."""
    check(served_without("|".join(ONCE_USED)))


@pytest.mark.process
@needs_fork
@pytest.mark.slow
def test_every_private_name_may_go() -> None:
    """Each private name of the SDK's spans, processors and provider, one after another."""
    told = served_without(*(name for name in private_names() if name not in SEEN_BY_DOCTOR))
    assert len(told) > 30
    check(told)


@pytest.mark.process
@needs_fork
@pytest.mark.slow
def test_what_doctor_reads_may_go() -> None:
    """Then the processors cannot be seen, and all else is as before."""
    told = served_without(*SEEN_BY_DOCTOR)
    for name in SEEN_BY_DOCTOR:
        assert told[name].pop("sees_processors") == 0
        told[name]["sees_processors"] = 1
    check(told)


@pytest.fixture
def untested() -> Any:
    """Forget the self-test before and after."""
    spans_can_be_rebuilt.cache_clear()
    yield
    spans_can_be_rebuilt.cache_clear()


def broken(self: Any, **parts: Any) -> None:
    """A constructor that takes other arguments."""
    raise TypeError


def forgetful(self: Any, **parts: Any) -> None:
    """A constructor that takes them and does something else."""
    real(self, **{**parts, "attributes": {}})


real = ReadableSpan.__init__


@pytest.mark.usefixtures("untested")
@pytest.mark.parametrize("constructor", [broken, forgetful])
def test_spans_that_cannot_be_rebuilt_go_on_as_they_came(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, constructor: Any
) -> None:
    """The self-test finds it before a span is lost; metrics are recorded, and there is one warning."""
    telemetry = Telemetry(wrap=True)
    monkeypatch.setattr(RebuiltSpan.__base__, "__init__", _for_rebuilt(constructor))
    for _ in range(2):
        span = telemetry.tracer().start_span("theirs")
        span.add_event("arrive")
        span.add_event("fail")
        span.end()
    assert [span["attributes"] for span in telemetry.spans("theirs")] == [{}, {}]
    assert telemetry.point("inference.requests")["value"] == 2
    assert [record.levelname for record in caplog.records if "other insides" in record.message] == ["WARNING"]


def _for_rebuilt(constructor: Any) -> Any:
    """The SDK's own spans are made as ever."""

    def init(self: Any, *arguments: Any, **parts: Any) -> None:
        (constructor if isinstance(self, RebuiltSpan) else real)(self, *arguments, **parts)

    return init


def test_a_rebuilt_span_tells_what_is_missing() -> None:
    """By the public properties, which exporters read."""
    span = RebuiltSpan(Dropped(attributes=1, events=2, links=3), name="sample")
    assert (span.dropped_attributes, span.dropped_events, span.dropped_links) == (1, 2, 3)


def test_a_subclass_keeps_its_own_hidden_hook() -> None:
    """What a subclass of the processor, or one of that, does with a hook is not replaced."""
    hidden = [name for name in vars(SpanProcessor) if name.startswith("_") and not name.startswith("__")]

    def own(self: Any, span: Any) -> None: ...

    child = type("Child", (LifecycleSpanProcessor,), dict.fromkeys(hidden, own))
    grandchild = type("Grandchild", (child,), {})
    assert [getattr(grandchild, name) for name in hidden] == [own] * len(hidden)


def test_a_hidden_hook_that_raises_is_contained(caplog: pytest.LogCaptureFixture) -> None:
    """The next processor's fault stays out of the server's end of a span."""

    class Raises(SpanProcessor):
        def any_hook(self, span: Any) -> None:
            raise RuntimeError

    processor = LifecycleSpanProcessor(Raises())
    assert processor.hand_on("any_hook", None) is None
    assert processor.hand_on("no_hook", None) is None
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    processor.shutdown()


def test_doctor_sees_what_a_provider_holds(telemetry: Telemetry) -> None:
    """Processors, the exporters in them, and endpoints; None and nothing of what holds none."""
    assert _sdk_traces.held_processors(telemetry.tracer_provider) is not None
    _, export = held_processors(telemetry.tracer_provider) or (None, None)
    assert held_exporters(export) == [telemetry.exporter]
    assert (held_processors(object()), held_exporters(object()), endpoint_of(object())) == (None, [], None)
