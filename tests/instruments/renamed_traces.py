"""What happens to spans when the trace SDK renames one of its private names.

``python -m tests.instruments.renamed_traces NAME ...``: for each name a forked child imports an SDK in which that name
is another one throughout, serves requests and foreign spans, and tells what was exported, as one JSON object a line.
An empty name is the SDK as it is; names with a bar between them are renamed together.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

RENAMED_IN: Final = "opentelemetry.sdk.trace"
CLASSES: Final = {"ReadableSpan", "Span", "SpanProcessor", "SynchronousMultiSpanProcessor", "TracerProvider"}
BASE: Final = time.time_ns() - 60 * 10**9
"""Read before the children are forked, so that all of them give their marks the same times."""
SECOND: Final = 10**9


def private_names() -> list[str]:
    """Return the private attributes and methods of the SDK's spans, processors and provider."""
    # Found without importing it: `opentelemetry` is a namespace, and importing `opentelemetry.sdk` imports nothing.
    found = importlib.util.find_spec("opentelemetry.sdk")
    assert found is not None
    assert found.submodule_search_locations is not None
    sdk = Path(next(iter(found.submodule_search_locations)))
    names: set[str] = set()
    for node in ast.walk(ast.parse((sdk / "trace" / "__init__.py").read_bytes())):
        if isinstance(node, ast.ClassDef) and node.name in CLASSES:
            names |= {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
            names |= {
                one.attr
                for one in ast.walk(node)
                if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id == "self"
            }
    return sorted(name for name in names if name.startswith("_") and not name.startswith("__"))


class Loader(SourceFileLoader):
    """Compiles a module of the SDK with one name replaced."""

    def __init__(self, fullname: str, path: str, name: str) -> None:
        super().__init__(fullname, path)
        self._name = name

    def get_code(self, fullname: str) -> CodeType:
        """Return the code, past any that is cached."""
        source = re.sub(rf"\b({self._name})\b", r"\1_renamed", Path(self.path).read_text(encoding="utf-8"))
        code: CodeType = compile(source, self.path, "exec")
        return code


class Finder(MetaPathFinder):
    """Finds the SDK's modules for the loader above."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module of the trace SDK is."""
        if not f"{fullname}.".startswith(f"{RENAMED_IN}."):
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = Loader(fullname, spec.loader.path, self._name)
        return spec


class Warnings(logging.Handler):
    """Keeps what the package logs."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.messages.append(record.getMessage())


def served() -> dict[str, Any]:
    """Serve requests and foreign spans; return the spans, the hooks that were called, figures, and what was logged."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider

    from otel_lifecycle._sdk_traces import held_processors
    from otel_lifecycle.processor import LifecycleSpanProcessor
    from tests.instruments.renamed import figures_of

    hooks: dict[str, int] = {}
    spans: list[Any] = []

    class Recorder(SpanProcessor):
        """Keeps the spans, and counts the hooks that the SDK calls; hidden ones under one name."""

        def on_start(self, span: Any, parent_context: Any = None) -> None:
            hooks["on_start"] = hooks.get("on_start", 0) + 1

        def on_end(self, span: Any) -> None:
            spans.append(span)

    def count(self: Any, span: Any) -> None:
        hooks["hidden"] = hooks.get("hidden", 0) + 1

    for name in vars(SpanProcessor):
        if name not in ("on_start", "on_end", "shutdown", "force_flush") and not name.startswith("__"):
            setattr(Recorder, name, count)

    warnings = Warnings()
    logging.getLogger("otel_lifecycle").addHandler(warnings)
    reader = InMemoryMetricReader()
    processor = LifecycleSpanProcessor(Recorder(), meter_provider=MeterProvider([reader], shutdown_on_exit=False))
    limits = SpanLimits(max_events=6, max_links=1, max_span_attributes=3)
    resource = Resource({"service.name": "tests"})
    whole, limited = (
        TracerProvider(resource=resource, shutdown_on_exit=False, span_limits=one) for one in (SpanLimits(), limits)
    )
    for provider in (whole, limited):
        provider.add_span_processor(processor)
    live(whole)
    for provider in (whole, limited):
        foreign(provider, 1)
        foreign(provider, 9)
    return {
        "spans": [told(span) for span in spans],
        "hooks": hooks,
        "figures": figures_of(reader),
        "warnings": warnings.messages,
        "sees_processors": len(held_processors(whole) or ()),
    }


def live(provider: Any) -> None:
    """A request that ends well, and its second attempt, which is marked wrongly and fails."""
    import otel_lifecycle as lifecycle

    first = lifecycle.request(model="m", arrived_at_ns=BASE, tracer_provider=provider)
    first.admit(at_ns=BASE + SECOND)
    first.input_ready(at_ns=BASE + 2 * SECOND)
    for number in range(3):
        first.token(at_ns=BASE + (3 + number) * SECOND)
    first.complete(at_ns=BASE + 6 * SECOND)
    second = lifecycle.request(model="m", arrived_at_ns=BASE, previous=first, tracer_provider=provider)
    second.admit(at_ns=BASE + SECOND)
    second.complete(at_ns=BASE + 2 * SECOND)
    second.fail("engine_error", at_ns=BASE + 2 * SECOND)


def foreign(provider: Any, tokens: int) -> None:
    """A span of another library, with a lifecycle, attributes and links; one that has many events loses some."""
    from opentelemetry.trace import Link, SpanContext

    links = [Link(SpanContext(7, number, is_remote=True), {"number": number}) for number in (1, 2)]
    attributes = {f"key.{number}": number for number in range(4)}
    span = provider.get_tracer("another").start_span("theirs", attributes=attributes, links=links, start_time=BASE)
    span.add_event("arrive", timestamp=BASE)
    span.add_event("admit", timestamp=BASE + SECOND)
    # Skips `input_ready`: a violation, which is shown on the rebuilt span.
    for number in range(tokens):
        span.add_event("token", {"number": number}, timestamp=BASE + 2 * SECOND)
    span.add_event("fail", timestamp=BASE + 3 * SECOND)
    span.end(end_time=BASE + 3 * SECOND)


def told(span: Any) -> dict[str, Any]:
    """Return what an exporter can read of a span, without the ids that differ from run to run."""
    return {
        "name": span.name,
        "kind": span.kind.name,
        "status": span.status.status_code.name,
        "scope": span.instrumentation_scope.name,
        "ids": span.context.trace_id > 0 and (span.parent is None or span.parent.span_id > 0),
        "resource": dict(span.resource.attributes),
        "attributes": dict(span.attributes),
        "events": [(event.name, event.timestamp, dict(event.attributes or {})) for event in span.events],
        "links": [dict(link.attributes or {}) for link in span.links],
        "times": (span.start_time, span.end_time),
        "dropped": (span.dropped_attributes, span.dropped_events, span.dropped_links),
    }


def main() -> None:
    """Print what comes of each name."""
    # Everything but the trace SDK, which each child imports anew.
    import opentelemetry.sdk.metrics.export  # noqa: F401

    import otel_lifecycle  # noqa: F401
    import tests.instruments.renamed  # noqa: F401

    assert RENAMED_IN not in sys.modules
    for name in sys.argv[1:]:
        sys.stdout.flush()
        child = os.fork()
        if not child:
            try:
                if name:
                    sys.meta_path.insert(0, Finder(name))
                sys.stdout.write(json.dumps({"name": name, **served()}) + "\n")
            except Exception:  # noqa: BLE001  # it is told to the test
                sys.stdout.write(json.dumps({"name": name, "error": traceback.format_exc()}) + "\n")
            finally:
                sys.stdout.flush()
                os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
