"""What happens to metrics when the SDK renames one of its private names.

``python -m tests.instruments.renamed``: for each private name that ``otel_lifecycle._sdk_metrics`` uses, a forked child
loads that module as if the name were gone, serves requests and tells what came of it, as one JSON object a line.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import logging
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

ADAPTER: Final = "otel_lifecycle._sdk_metrics"
TOKENS: Final = 1000
REQUESTS: Final = 3


def is_private(name: str) -> bool:
    """Whether a name is private, and not one of the language's own."""
    return name.startswith("_") and not name.startswith("__")


def is_foreign(node: ast.Attribute) -> bool:
    """Whether an attribute is of another library's object, and not the adapter's own."""
    return not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))


class Renaming(ast.NodeTransformer):
    """Renames one private name wherever it is of another library; with no name given it only lists them."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.found: set[str] = set()

    def _renamed(self, name: str) -> str:
        if is_private(name):
            self.found.add(name)
        return f"{name}_renamed" if name == self.name else name

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:  # ast's own spelling
        """Rename ``x._name``."""
        if is_foreign(node):
            node.attr = self._renamed(node.attr)
        return self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        """Rename ``from x._name import _other``."""
        if node.module is not None and node.module.startswith("opentelemetry"):
            node.module = ".".join(map(self._renamed, node.module.split(".")))
            for alias in node.names:
                alias.asname = alias.asname or alias.name
                alias.name = self._renamed(alias.name)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Rename ``getattr(x, "_name")``."""
        if isinstance(node.func, ast.Name) and node.func.id == "getattr":
            name = node.args[1]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                name.value = self._renamed(name.value)
        return self.generic_visit(node)


class Loader(SourceFileLoader):
    """Compiles the adapter with a name replaced."""

    def __init__(self, fullname: str, path: str, name: str) -> None:
        super().__init__(fullname, path)
        self._name = name

    def get_code(self, fullname: str) -> CodeType:
        """Return the code, past any that is cached."""
        tree = Renaming(self._name).visit(ast.parse(Path(self.path).read_bytes()))
        code: CodeType = compile(ast.fix_missing_locations(tree), self.path, "exec")
        return code


class Finder(MetaPathFinder):
    """Finds the adapter for the loader above."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where the adapter is."""
        if fullname != ADAPTER:
            return None
        file = str(adapter_file())
        return importlib.util.spec_from_file_location(fullname, file, loader=Loader(fullname, file, self._name))


def adapter_file() -> Path:
    """Return the adapter's source, found without importing it."""
    package = importlib.util.find_spec("otel_lifecycle")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).with_name("_sdk_metrics.py")


def private_names() -> list[str]:
    """Return every private name of OpenTelemetry that the adapter uses."""
    renaming = Renaming()
    renaming.visit(ast.parse(adapter_file().read_bytes()))
    return sorted(renaming.found)


class Warnings(logging.Handler):
    """Keeps what the package logs."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.messages.append(record.getMessage())


def served() -> dict[str, Any]:
    """Serve requests; return the figures of two readers, the calls at an end, and what was logged."""
    from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider
    from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider

    import otel_lifecycle as lifecycle
    from otel_lifecycle.processor import LifecycleSpanProcessor
    from tests.instruments.ways import count_calls

    warnings = Warnings()
    logging.getLogger("otel_lifecycle").addHandler(warnings)
    delta: Any = dict.fromkeys((Counter, Histogram), AggregationTemporality.DELTA)
    readers = [InMemoryMetricReader(), InMemoryMetricReader(preferred_temporality=delta)]
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(LifecycleSpanProcessor(meter_provider=MeterProvider(readers, shutdown_on_exit=False)))
    calls = 0
    for _ in range(REQUESTS):
        request = lifecycle.request(model="m", tracer_provider=provider)
        request.admit()
        request.input_ready()
        for _ in range(TOKENS):
            request.token()
        calls = sum(count_calls(request.complete).values())
    figures = [figures_of(reader) for reader in readers]
    return {"figures": figures, "again": figures_of(readers[0]), "calls": calls, "warnings": warnings.messages}


def figures_of(reader: Any) -> dict[str, float]:
    """Return the sum of each metric's counts, of those that do not measure time itself."""
    data = reader.get_metrics_data()
    return {
        metric.name: sum(map(amount_of, metric.data.data_points))
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        # Sums and levels of seconds differ from one run to the next; how many durations there are does not.
        if metric.unit != "s" or hasattr(metric.data.data_points[0], "count")
    }


def amount_of(point: Any) -> float:
    """Return the count of a histogram's point, the value of any other."""
    amount: float = point.count if hasattr(point, "count") else point.value
    return amount


def main() -> None:
    """Print what comes of each name, and of none."""
    import opentelemetry.sdk.metrics.export
    import opentelemetry.sdk.trace  # noqa: F401  # each child finds it imported

    for name in ("", *private_names()):
        sys.stdout.flush()
        child = os.fork()
        if not child:
            try:
                sys.meta_path.insert(0, Finder(name))
                sys.stdout.write(json.dumps({"name": name, **served()}) + "\n")
                sys.stdout.flush()
            finally:
                os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
