"""What the tests of the command line share."""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import Ran, run_with

_PERMUTED: dict[Any, Any] = {}
_READ: dict[Any, Any] = {}
_JUDGED: dict[bytes, Any] = {}
MOST_REMEMBERED = 2**22
"""Bytes of a file that is read once."""


@pytest.fixture(autouse=True)
def _permuted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember scipy's permutation tests: many tests compare the same files, and the product gives a fixed seed."""
    # Importing scipy takes 2.5 s of CPU, which only the first test that compares has to pay.
    stats = sys.modules.get("scipy.stats")
    if stats is None:
        return
    real = stats.permutation_test

    def permuted(data: Any, statistic: Any, **options: Any) -> Any:
        seen = [cell.cell_contents for cell in statistic.__closure__ or ()]
        key = (statistic.__code__, pickle.dumps((data, seen, options)))
        if key not in _PERMUTED:
            _PERMUTED[key] = real(data, statistic, **options)
        return _PERMUTED[key]

    monkeypatch.setattr(stats, "permutation_test", permuted)


@pytest.fixture(autouse=True)
def _compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember the runs that `compare` has read and the figures it has judged, by what they are made of.

    Many tests compare the same files: what differs is what is said of them.
    """
    command = sys.modules.get("otel_lifecycle._cli.commands.compare")
    if command is None:
        return
    read, judge = command._run, command.compared

    def run(name: str, source: str, settings: Any) -> Any:
        path = Path(source)
        if not path.is_file() or path.stat().st_size > MOST_REMEMBERED:
            return read(name, source, settings)
        key = (hashlib.sha256(path.read_bytes()).digest(), path.name, repr(settings))
        if key not in _READ:
            _READ[key] = read(name, source, settings)
        return _READ[key]

    def compared(*arguments: Any) -> Any:
        key = hashlib.sha256(pickle.dumps(arguments)).digest()
        if key not in _JUDGED:
            _JUDGED[key] = judge(*arguments)
        return list(_JUDGED[key])

    monkeypatch.setattr(command, "_run", run)
    monkeypatch.setattr(command, "compared", compared)


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Ran]:
    """Give a function that runs a command in a folder of its own, and returns what it left."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Ran:
        return run_with(capfd, *arguments)

    return run
