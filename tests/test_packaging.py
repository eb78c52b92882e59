"""What a user gets: what an import loads, which names are public, what is in the wheel."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from email.parser import HeaderParser
from pathlib import Path
from zipfile import ZipFile

import pytest

import otel_lifecycle
from otel_lifecycle._version import __version__

ROOT = Path(__file__).resolve().parents[1]
API = "from opentelemetry import baggage, context, metrics, propagate, trace"
PUBLIC = [
    "Slo",
    "classify_request_outcome",
    "compute_interference",
    "compute_request_metrics",
    "configure",
    "current",
    "engine_step",
    "monotonic",
    "read_requests",
    "replay_request_events",
    "request",
    "serving",
    "shutdown",
    "stage",
    "startup",
    "step",
    "summarize_workload",
    "traced",
]


def loaded_by(statement: str) -> set[str]:
    """The modules that a new interpreter holds after a statement, those of the standard library left out."""
    code = f"import json, sys\n{statement}\nprint(json.dumps(list(sys.modules)))"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    names: list[str] = json.loads(result.stdout)
    return {name for name in names if name.partition(".")[0] not in sys.stdlib_module_names}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    """The wheel as it is built from this checkout."""
    target = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(target)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = target.glob("*.whl")
    return ZipFile(path)


@pytest.mark.process
def test_import_loads_the_api_only() -> None:
    """Importing the package loads no SDK, no exporter and no other package than the OpenTelemetry API does itself."""
    loaded = loaded_by("import otel_lifecycle")
    assert {name for name in loaded if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))} == set()
    packages = {name.partition(".")[0] for name in loaded - loaded_by(API)}
    assert packages - {"opentelemetry"} == {"otel_lifecycle"}


HELPERS = {"annotations", "Any", "TYPE_CHECKING"}
"""What the module imports for itself."""


def test_all_is_sorted_and_complete() -> None:
    """``__all__`` is sorted, is what the package promises, and is every public name there is."""
    assert otel_lifecycle.request is vars(otel_lifecycle)["request"], "the first name loads them all"
    members = [
        name
        for name, member in vars(otel_lifecycle).items()
        if not name.startswith("_")
        and not inspect.ismodule(member)
        and name not in {"annotations", "Any", "TYPE_CHECKING"}
    ]
    assert otel_lifecycle.__all__ == sorted(members) == PUBLIC


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    """So that hasattr and getattr with a default work on the package."""
    assert not hasattr(otel_lifecycle, "no_such_name")
    assert set(PUBLIC) <= set(dir(otel_lifecycle))


@pytest.mark.process
@pytest.mark.source
def test_wheel_holds_the_package_and_nothing_else(wheel: ZipFile) -> None:
    """The wheel has every module and py.typed, and beside them only its own metadata with the licence."""
    package = [path.relative_to(ROOT) for path in (ROOT / "otel_lifecycle").rglob("*") if path.is_file()]
    info = f"otel_lifecycle-{__version__}.dist-info"
    shipped = {name for name in wheel.namelist() if not name.startswith(info)}
    assert shipped == {path.as_posix() for path in package if "__pycache__" not in path.parts}
    assert "otel_lifecycle/py.typed" in shipped
    assert f"{info}/licenses/LICENSE" in wheel.namelist()


@pytest.mark.process
@pytest.mark.source
def test_wheel_metadata(wheel: ZipFile) -> None:
    """The wheel's version is the one of the source, and it needs OpenTelemetry's three packages and no others."""
    text = wheel.read(f"otel_lifecycle-{__version__}.dist-info/METADATA").decode()
    metadata = HeaderParser().parsestr(text)
    needed = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert metadata["Version"] == __version__
    assert metadata["Requires-Python"] == ">=3.10"
    assert sorted(line.partition("<")[0] for line in needed) == [
        "opentelemetry-api",
        "opentelemetry-exporter-otlp",
        "opentelemetry-sdk",
    ]


@pytest.mark.source
def test_files_stay_short() -> None:
    """No module of the package, the examples or the tests has 400 lines or more."""
    sources = [path for folder in ("otel_lifecycle", "examples", "tests") for path in (ROOT / folder).rglob("*.py")]
    lines = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in sources}
    assert lines["otel_lifecycle/__init__.py"] > 0
    assert {name: count for name, count in lines.items() if count >= 400} == {}
