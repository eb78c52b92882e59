"""Looks at the program it runs in, some seconds after its start, and writes what it finds to a file.

Python imports a module of this name at its start, before the program.  It runs in the environment of the program that
is examined, so it needs nothing but the standard library.  It must not change what the program does: every error
in here is written to the file or lost.
"""
# ruff: noqa: INP001 - a folder that is put on the path of another program must be no package

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

# Removed at once, so that child processes of the program do not look as well and overwrite the file.
_TARGET = os.environ.pop("OTEL_LIFECYCLE_DOCTOR_FILE", None)
_WAIT = float(os.environ.pop("OTEL_LIFECYCLE_DOCTOR_WAIT", "5"))
MAX_DEPTH: Final = 5
# Never released: the timer, the exit and the program itself may all ask, and only the first one looks.
_done = threading.Lock()


def _load_hidden() -> None:
    """Import the sitecustomize that this one hides, such as that of opentelemetry-instrument."""
    here = Path(__file__).resolve().parent
    # In place, since others may hold the list; PYTHONPATH too, or workers would import this module again.
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(entry for entry in paths if entry and Path(entry).resolve() != here)
    if not os.environ["PYTHONPATH"]:
        del os.environ["PYTHONPATH"]
    # The entry must go, or the import below would find this module again.
    own = sys.modules.pop("sitecustomize", None)
    try:
        __import__("sitecustomize")
    except ImportError:
        if own is not None:
            sys.modules["sitecustomize"] = own


def _versions() -> dict[str, str]:
    from importlib.metadata import distributions

    found = {}
    for distribution in distributions():
        name = (distribution.metadata["Name"] or "").lower()
        if name.startswith("opentelemetry-") or name in ("otel-lifecycle", "grpcio"):
            found[name] = distribution.version
    return found


def _engines() -> list[dict[str, Any]]:
    """Return each engine that an instrumentor of ours is for: its version, and whether it is instrumented."""
    from importlib.metadata import PackageNotFoundError, entry_points, version

    found: list[dict[str, Any]] = []
    for entry in entry_points(group="opentelemetry_instrumentor"):
        if not entry.value.startswith("otel_lifecycle."):
            continue
        try:
            instrumentor = entry.load()()
            wanted = [str(one) for one in instrumentor.instrumentation_dependencies()]
            active = bool(instrumentor.is_instrumented_by_opentelemetry)
        except Exception as error:  # noqa: BLE001 - told, whatever it is
            found.append({"instrumentor": entry.value, "error": f"{type(error).__name__}: {error}"})
            continue
        for requirement in wanted:
            name = requirement.split(" ")[0].split(">")[0].split("<")[0].split("=")[0].split("[")[0].strip()
            try:
                installed = version(name)
            except PackageNotFoundError:
                continue
            found.append(
                {
                    "instrumentor": entry.value,
                    "engine": name,
                    "version": installed,
                    "wanted": requirement,
                    "active": active,
                }
            )
    return found


def _name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _tree(value: object, depth: int = 0) -> dict[str, Any]:
    """Return a processor, reader or exporter by class name, and what it holds."""
    from otel_lifecycle._sdk_traces import endpoint_of, held_exporters

    endpoint = endpoint_of(value)
    return {
        "class": _name(value),
        # Bounded, because wrappers may refer back to what they wrap.
        "inner": [_tree(one, depth + 1) for one in held_exporters(value)] if depth < MAX_DEPTH else [],
        **({} if endpoint is None else {"endpoint": endpoint}),
    }


def _trees(held: list[object] | None) -> list[dict[str, Any]] | None:
    return None if held is None else [_tree(one) for one in held]


def _providers() -> dict[str, Any]:
    # Importing it here would change the program and hide that it never did so itself.
    if "opentelemetry" not in sys.modules:
        return {"api": False}
    from opentelemetry import metrics, trace

    tracers, meters = trace.get_tracer_provider(), metrics.get_meter_provider()
    found: dict[str, Any] = {"api": True, "tracer": _name(tracers), "meter": _name(meters)}
    if "opentelemetry.sdk.trace" in sys.modules:
        from opentelemetry.sdk.trace import TracerProvider

        found["sdk"] = isinstance(tracers, TracerProvider)
        found["sampler"] = str(getattr(tracers, "sampler", None))
        # In an environment without this package nothing knows where to look.
        with suppress(ImportError):
            from otel_lifecycle._sdk_metrics import held_readers
            from otel_lifecycle._sdk_traces import held_processors

            found["processors"], found["readers"] = _trees(held_processors(tracers)), _trees(held_readers(meters))
    return found


def _settings() -> str | None:
    """Return what is wrong with the settings by the rules of the installed version, or None."""
    try:
        from otel_lifecycle._configuration.settings import read_settings
    except ImportError:
        return None
    try:
        read_settings({})
    except Exception as error:  # noqa: BLE001 - told, whatever it is
        return str(error)
    return None


def _known_variables() -> list[str]:
    import re

    found: set[str] = set()
    for name in ("opentelemetry.environment_variables", "opentelemetry.sdk.environment_variables"):
        try:
            module = __import__(name, fromlist=["x"])
        except ImportError:
            continue
        found.update(value for value in vars(module).values() if isinstance(value, str) and re.match("OTEL_", value))
    return sorted(found)


PARTS: Final[tuple[tuple[str, Any], ...]] = (
    ("versions", _versions),
    ("providers", _providers),
    ("engines", _engines),
    ("settings", _settings),
    ("known_variables", _known_variables),
)


def _look(target: str, *, ended: bool = False) -> None:
    if not _done.acquire(blocking=False):
        return
    found: dict[str, Any] = {"python": sys.version.split()[0], "executable": sys.executable, "ended": ended}
    errors = []
    for key, part in PARTS:
        try:
            found[key] = part()
        except Exception as error:  # noqa: BLE001 - told, whatever it is
            errors.append(f"{key}: {type(error).__name__}: {error}")
    # Renamed when it is whole: the reader may look at any time.
    part_of_it = Path(f"{target}.part")
    part_of_it.write_text(json.dumps({**found, "errors": errors}), encoding="utf-8")
    part_of_it.replace(target)


if _TARGET:
    _load_hidden()
    _timer = threading.Timer(_WAIT, _look, (_TARGET,))
    # A program that ends must not wait for the look.
    _timer.daemon = True
    _timer.start()
    atexit.register(_look, _TARGET, ended=True)
    # For a program that knows when it is ready to be looked at.
    setattr(sys, "otel_lifecycle_look", partial(_look, _TARGET))  # noqa: B010 - not an attribute that sys has
