"""What the tests of the command line share."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import Ran, run_with

_PERMUTED: dict[Any, Any] = {}


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


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Ran]:
    """Give a function that runs a command in a folder of its own, and returns what it left."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Ran:
        return run_with(capfd, *arguments)

    return run
