"""The matrix of faults, filled by the tests of this folder and printed when they are done."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import otel_lifecycle as lifecycle
from otel_lifecycle._configuration import setup
from tests.faults.matrix import Matrix

MATRIX = pytest.StashKey[Matrix]()


@pytest.fixture(scope="session")
def matrix(pytestconfig: pytest.Config) -> Matrix:
    """Collect what each fault costs."""
    return pytestconfig.stash.setdefault(MATRIX, Matrix())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the matrix."""
    collected = config.stash.get(MATRIX, None)
    if collected is None:
        return
    if collected.rows:
        terminalreporter.section("what faults cost")
        for line in collected.lines():
            terminalreporter.write_line(line)
    if collected.held:
        terminalreporter.section("how long the end of a request holds its thread: median (p99)")
        for line in collected.held_lines():
            terminalreporter.write_line(line)


@pytest.fixture
def fresh_process(fresh_globals: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No global providers and no configuration; what the test configures is shut down after it."""
    monkeypatch.setattr(setup, "_default", setup._Default())
    yield
    lifecycle.shutdown(timeout=5)
