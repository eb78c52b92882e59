"""Private names of other libraries stay in the adapters that say what happens when one is gone."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import otel_lifecycle

PACKAGE = Path(otel_lifecycle.__file__).parent
ADAPTERS = {"_sdk_child_spans.py", "_sdk_metrics.py", "_sdk_traces.py"}
# Of Python itself: the documented names of a named tuple, and of the frame that a function is called from.
OF_PYTHON = {"_asdict", "_replace", "_getframe", "_exit"}


@cache
def trees() -> dict[Path, ast.Module]:
    """Every module of the package but the adapters, and the drop-ins, which are adapters of one engine each."""
    files = (file for file in PACKAGE.rglob("*.py") if file.name not in ADAPTERS and "integrations" not in file.parts)
    return {file: ast.parse(file.read_text(encoding="utf-8")) for file in files}


def is_private(name: str) -> bool:
    """Whether a name is private, and not one of the language's own."""
    return name.startswith("_") and not name.startswith("__")


def own_names() -> set[str]:
    """Names that the package itself gives to attributes, functions, classes and slots."""
    names: set[str] = set()
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
    return names


def test_no_private_attribute_of_another_library_is_read() -> None:
    """By dot, and by getattr().  It cannot distinguish a name that is ours too; renaming the SDK does."""
    own, found = own_names() | OF_PYTHON, []
    for file, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
                found.append((file.name, node.attr))
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr":
                name = node.args[1]
                if isinstance(name, ast.Constant) and is_private(str(name.value)) and name.value not in own:
                    found.append((file.name, str(name.value)))
    assert found == []


def test_nothing_private_of_opentelemetry_is_imported() -> None:
    """Neither a private module nor a private name of one."""
    found = [
        (file.name, node.module)
        for file, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("opentelemetry")
        if any(map(is_private, [*(node.module or "").split("."), *(alias.name for alias in node.names)]))
    ]
    assert found == []
