"""What a module keeps and changes is seen by every thread: each such place is known, with what makes it safe."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import otel_lifecycle

pytestmark = pytest.mark.source

PACKAGE = Path(otel_lifecycle.__file__).parent
LITERALS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
MAKERS = {"dict", "list", "set", "bytearray", "deque", "defaultdict", "OrderedDict", "Counter", "ChainMap"}
MAKERS |= {"WeakKeyDictionary", "WeakValueDictionary", "WeakSet", "SimpleQueue", "Queue"}
CHANGES = {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "put"}
CHANGES |= {"remove", "setdefault", "update", "difference_update", "intersection_update", "subtract", "sort", "reverse"}

KNOWN = {
    "_configuration.process_exit._hooked": "a set of two names; to add one twice is to add it once",
    "_instruments.instruments._making": "the lock of the next two, made anew in a child, which has one thread",
    "_instruments.instruments._instruments": "written and read under _making",
    "_instruments.instruments._inherited_by_forks": "written under _making; read as a copy in a child",
    "_log._last_said": "a race costs one line more",
    "_test_collector._collectors": "written where a test session starts, by its one thread",
}
"""Module and name -> why threads that change it at once do no harm."""


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Yield every module of the package by its name within it."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        yield ".".join(parts), ast.parse(path.read_text(encoding="utf-8"))


def containers(tree: ast.Module) -> dict[str, ast.expr]:
    """Return what a module binds, at its top, to something that can be changed."""
    found: dict[str, ast.expr] = {}
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        if isinstance(value, LITERALS) or (isinstance(value, ast.Call) and last_name(value.func) in MAKERS):
            found |= {target.id: value for target in targets if isinstance(target, ast.Name)}
    return found


def last_name(node: ast.expr) -> str:
    """Return the name of a name, and of an attribute."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def starts_empty(value: ast.expr) -> bool:
    """Whether a container has nothing in it yet, so that it is of no use unless something is put into it."""
    if isinstance(value, ast.Call):
        return not value.args or last_name(value.func).startswith("Weak")
    return isinstance(value, (ast.List, ast.Set)) and not value.elts


def changed(tree: ast.Module) -> set[str]:
    """Return the names that are changed in place, by an index, a method or an operator, or rebound by ``global``."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            names.update(node.names)
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            names.add(last_name(node.value))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            names.add(last_name(node.func.value))
        elif isinstance(node, ast.AugAssign):
            names.add(last_name(node.target))
    return names


def taken_in(tree: ast.Module) -> set[str]:
    """Return the names that a module has from others."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name for node in nodes for alias in node.names}


def kept(trees: dict[str, ast.Module]) -> set[str]:
    """Return every container at the top of a module that is changed once the module is imported, by module and name."""
    of_others = [changed(tree) & taken_in(tree) for tree in trees.values()]
    found = set()
    for module, tree in trees.items():
        within: list[ast.stmt] = [
            node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        ]
        later = changed(ast.Module(within, [])) | set().union(*of_others)
        rebound = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
        found |= {f"{module}.{name}" for name in rebound}
        found |= {
            f"{module}.{name}"
            for name, value in containers(tree).items()
            if name != "__all__" and (starts_empty(value) or name in later)
        }
    return found


def test_every_container_that_threads_share_is_known() -> None:
    """A new one gets a lock, or a line in KNOWN that says why it needs none."""
    assert kept(dict(modules())) == set(KNOWN)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("KEPT = {}\ndef f():\n    KEPT[1] = 2", {"a.KEPT"}),
        ("KEPT = {'x': 1}\ndef f():\n    del KEPT['x']", {"a.KEPT"}),
        ("KEPT: list[int] = [1]\nclass C:\n    def f(self):\n        KEPT.append(1)", {"a.KEPT"}),
        ("import weakref\nKEPT = weakref.WeakSet()", {"a.KEPT"}),
        ("LAST = None\ndef f():\n    global LAST\n    LAST = 1", {"a.LAST"}),
        ("KEPT = {1: 2}\ndef f():\n    return KEPT[1]", set()),
        ("KEPT = [1]\nKEPT += [2]", set()),
    ],
)
def test_what_is_changed_is_found(text: str, found: set[str]) -> None:
    """Containers that only hold a table are left out, and so is what a module does while it is imported."""
    assert kept({"a": ast.parse(text)}) == found


def test_what_another_module_changes_is_found() -> None:
    """By the name it was imported with."""
    other = ast.parse("from a import KEPT\ndef f():\n    KEPT.update(x=1)")
    assert kept({"a": ast.parse("KEPT = {1: 2}"), "b": other}) == {"a.KEPT"}
