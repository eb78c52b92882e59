"""What all instrumentors have in common, and what ``opentelemetry-instrument`` finds."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from otel_lifecycle import driver
from otel_lifecycle.integrations._engine import EngineInstrumentor
from otel_lifecycle.integrations._hooks import EngineMismatch, Hooks
from otel_lifecycle.integrations.litserve import LitServeInstrumentor
from otel_lifecycle.integrations.llama_cpp import LlamaCppInstrumentor
from otel_lifecycle.integrations.xllamacpp import XllamacppInstrumentor
from tests.integration.support_engines import instrumented
from tests.support.otlp_receiver import HttpReceiver
from tests.support.telemetry import Telemetry

MODULES = ("litserve", "llama_cpp", "xllamacpp")


class Engine:
    """Stands for an engine's class."""

    def generate(self) -> str:
        """Generate."""
        return "text"


class EngineOfPytest(EngineInstrumentor):
    """Instruments something that is surely installed."""

    distribution: ClassVar[str] = "pytest"
    requirement: ClassVar[str] = ">= 8"

    def _patch(self, hooks: Hooks, tracer_provider: Any) -> None:
        hooks.wrap(Engine, "generate", lambda original: lambda self: original(self) + "!")


class TooOld(EngineOfPytest):
    """Asks for a version there is not."""

    requirement: ClassVar[str] = "< 1"


class NotInstalled(EngineOfPytest):
    """Asks for a package there is not."""

    distribution: ClassVar[str] = "there-is-no-such-engine"


class NotAsExpected(EngineOfPytest):
    """Asks for a method there is not, after one that there is."""

    def _patch(self, hooks: Hooks, tracer_provider: Any) -> None:
        super()._patch(hooks, tracer_provider)
        hooks.wrap(Engine, "decode", lambda original: original)


class WithoutItsClass(EngineOfPytest):
    """Asks for an attribute there is not, after a method that there is."""

    def _patch(self, hooks: Hooks, tracer_provider: Any) -> None:
        super()._patch(hooks, tracer_provider)
        hooks.wrap(pytest.Engine, "generate", lambda original: original)  # type: ignore[attr-defined]  # the point


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test may hear what is said once."""
    monkeypatch.setattr(EngineInstrumentor, "_told", set())
    monkeypatch.setattr("otel_lifecycle._log._last_said", {})


def test_instrument_and_uninstrument() -> None:
    """Twice is once, and everything is as it was afterwards."""
    before = dict(vars(Engine))
    instrumentor = EngineOfPytest()
    instrumentor.instrument()
    instrumentor.instrument()
    assert (Engine().generate(), Engine.generate.__doc__) == ("text!", "Generate.")
    instrumentor.uninstrument()
    assert dict(vars(Engine)) == before
    assert Engine().generate() == "text"


@pytest.mark.parametrize("skip", [False, True], ids=["by-hand", "by-opentelemetry-instrument"])
def test_unsupported_version_is_said_once_and_left_alone(caplog: pytest.LogCaptureFixture, skip: bool) -> None:
    """One line names the version and the ones that are known; the engine runs as it is."""
    for _ in range(2):
        TooOld().instrument(skip_dep_check=skip)
        TooOld().uninstrument()
    lines = [record.getMessage() for record in caplog.records if record.name == "otel_lifecycle"]
    version = importlib.metadata.version("pytest")
    assert lines == [f"pytest {version} is not < 1; it is not instrumented"]
    assert Engine().generate() == "text"


def test_engine_that_is_not_installed_is_nothing_to_speak_of(caplog: pytest.LogCaptureFixture) -> None:
    """Most programs have at most one engine."""
    caplog.set_level(logging.DEBUG, "otel_lifecycle")
    NotInstalled().instrument()
    NotInstalled().uninstrument()
    assert [record for record in caplog.records if record.name == "otel_lifecycle"] == []


@pytest.mark.parametrize(
    ("instrumentor", "missing"),
    [(NotAsExpected, "Engine has no decode"), (WithoutItsClass, "module 'pytest' has no attribute 'Engine'")],
)
def test_engine_that_is_not_as_expected_is_left_alone(
    caplog: pytest.LogCaptureFixture, instrumentor: type[EngineOfPytest], missing: str
) -> None:
    """What was replaced before the miss is put back."""
    instrumentor().instrument()
    lines = [record.getMessage() for record in caplog.records if record.name == "otel_lifecycle"]
    instrumentor().uninstrument()
    assert lines == [f"pytest is not as expected: {missing}; it is not instrumented"]
    assert Engine().generate() == "text"


def test_patches_put_back_what_was_there() -> None:
    """A method is what it was, and an inherited one is inherited again."""

    class Derived(Engine):
        pass

    hooks = Hooks()
    before = dict(vars(Engine)), dict(vars(Derived))
    hooks.wrap(Engine, "generate", lambda original: lambda self: original(self) + "!")
    hooks.wrap(Derived, "generate", lambda original: lambda self: "derived")
    assert (Derived().generate(), Engine().generate()) == ("derived", "text!")
    hooks.undo()
    assert (dict(vars(Engine)), dict(vars(Derived))) == before
    with pytest.raises(EngineMismatch, match="no missing"):
        hooks.wrap(ModuleType("engine"), "missing", lambda original: original)


@pytest.mark.parametrize("name", MODULES)
def test_module_of_an_instrumentor_loads_no_engine(name: str) -> None:
    """Importing an instrumentor is cheap, and needs no engine."""
    program = f"import sys, otel_lifecycle.integrations.{name}; print(sorted({MODULES!r} & sys.modules.keys()))"
    program = program.replace(f"{MODULES!r}", f"set({MODULES!r})")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]"]


def test_extra_and_instrumentor_name_the_same_versions() -> None:
    """What pip installs for an engine is what its instrumentor takes."""
    extras = {
        requirement.name: requirement.specifier
        for requirement in map(Requirement, importlib.metadata.requires("otel-lifecycle") or ())
        if requirement.marker is not None and "extra ==" in str(requirement.marker)
    }
    known = [LitServeInstrumentor, LlamaCppInstrumentor, XllamacppInstrumentor]
    assert {one.distribution: SpecifierSet(one.requirement) for one in known} == {
        one.distribution: extras[one.distribution] for one in known
    }


@pytest.mark.parametrize("leave", ["close", "drop"])
@pytest.mark.parametrize("pulls", [0, 1])
def test_stream_that_is_given_up_is_cancelled(telemetry: Telemetry, pulls: int, leave: str) -> None:
    """Closed or dropped, before its first pull or after: cancelled, and the engine's own iterator is closed."""
    closed = []

    class Items:
        """Stands for what an engine returns."""

        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            return 1

        def close(self) -> None:
            closed.append(True)

    drive = driver.begin(model="tiny", tracer_provider=telemetry.tracer_provider)
    stream = drive.stream(Items(), read=lambda item: None, eager=True)
    assert [next(stream) for _ in range(pulls)] == [1] * pulls
    if leave == "close":
        stream.close()
    del stream
    attributes = telemetry.span("chat tiny")["attributes"]
    assert (attributes["inference.outcome"], attributes["inference.legal"], closed) == ("cancelled", True, [True])


def test_entry_points() -> None:
    """The package says what ``opentelemetry-instrument`` is to load."""
    found = {
        (point.group, point.name, point.value)
        for point in importlib.metadata.distribution("otel-lifecycle").entry_points
        if point.group.startswith("opentelemetry_")
    }
    where = "otel_lifecycle.integrations"
    assert found == {
        ("opentelemetry_post_instrument", "otel_lifecycle", f"{where}.auto:ensure_processor"),
        ("opentelemetry_instrumentor", "lifecycle_litserve", f"{where}.litserve:LitServeInstrumentor"),
        ("opentelemetry_instrumentor", "lifecycle_llama_cpp", f"{where}.llama_cpp:LlamaCppInstrumentor"),
        ("opentelemetry_instrumentor", "lifecycle_xllamacpp", f"{where}.xllamacpp:XllamacppInstrumentor"),
    }


PROGRAM = """
import otel_lifecycle as lifecycle
from otel_lifecycle import driver
with lifecycle.request(model="tiny") as request:
    request.admit(); request.input_ready(); request.first_token(); request.token()
"""

OTHER_CONFIGURATOR = """
from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
class Configurator:
    def configure(self, **options):
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(provider)
        metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())]))
"""


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(False, id="of-the-distro"),
        pytest.param(True, id="another-configurator", marks=pytest.mark.slow),
    ],
)
def test_opentelemetry_instrument_needs_no_code(tmp_path: Path, otlp_http: HttpReceiver, other: bool) -> None:
    """The processor is in place, whoever set the providers up; at the end everything has been sent, once."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    # The distro exports by gRPC unless told otherwise.
    environment = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    if other:
        (tmp_path / "other_configurator.py").write_text(OTHER_CONFIGURATOR)
        points = "[opentelemetry_configurator]\nother = other_configurator:Configurator\n"
        installed = tmp_path / "other_configurator-1.dist-info"
        installed.mkdir()
        (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: other-configurator\nVersion: 1\n")
        (installed / "entry_points.txt").write_text(points)
        python_path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
        environment = {"OTEL_PYTHON_CONFIGURATOR": "other", "PYTHONPATH": python_path}
    with instrumented(program, otlp=otlp_http.endpoint, **environment) as process:
        assert process.wait(60) == 0
        otlp_http.wait_for(lambda: otlp_http.spans("chat tiny") and otlp_http.points("inference.requests"))
    (span,) = otlp_http.spans("chat tiny")
    assert span["attributes"]["inference.outcome"] == "completed"
    assert [point["value"] for point in otlp_http.points("inference.requests")] == [1]
