"""Lower layers never import higher ones; the contract itself stands in pyproject.toml."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "otel_lifecycle"
PURE = sorted([*PACKAGE.glob("_core/**/*.py"), PACKAGE / "errors.py", PACKAGE / "semconv.py"])

pytestmark = pytest.mark.source


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the package under ``root`` by the contracts of this checkout."""
    command: list[str | Path] = [
        Path(sys.executable).with_name("lint-imports"),
        "--config",
        ROOT / "pyproject.toml",
        "--no-cache",
    ]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def imported(source: Path) -> set[str]:
    """The top-level names a module imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return {name.partition(".")[0] for name in names}


@pytest.mark.process
def test_contracts_hold() -> None:
    """Every contract is kept."""
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.process
@pytest.mark.parametrize(
    ("module", "line", "complaint"),
    [
        ("_core/lifecycle.py", "import otel_lifecycle._request", "otel_lifecycle._core.lifecycle -> "),
        ("errors.py", "import otel_lifecycle._core", "otel_lifecycle.errors -> otel_lifecycle._core"),
        ("semconv.py", "import opentelemetry.trace", "otel_lifecycle.semconv -> opentelemetry"),
        ("homeless.py", "", "homeless"),
    ],
)
def test_contracts_bite(tmp_path: Path, module: str, line: str, complaint: str) -> None:
    """A copy of the package with one wrong import, or a module in no layer, breaks a contract, which names it."""
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / PACKAGE.name / module).open("a", encoding="utf-8") as source:
        source.write(f"\n{line}\n")
    result = lint(tmp_path)
    assert result.returncode == 1
    assert complaint in result.stdout


@pytest.mark.parametrize("source", PURE, ids=lambda source: str(source.relative_to(ROOT)))
def test_core_needs_the_standard_library_alone(source: Path) -> None:
    """No module of the core, the errors or the names imports anything but the standard library and its own layer."""
    assert imported(source) - sys.stdlib_module_names - {"otel_lifecycle"} == set()
