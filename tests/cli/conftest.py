"""What the tests of the command line share."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import Ran, run_with


@pytest.fixture(scope="session", autouse=True)
def _permuted_once() -> Iterator[None]:
    """Remember scipy's permutation tests: many tests compare the same files, and the product gives a fixed seed."""
    try:
        from scipy import stats
    except ImportError:
        yield
        return
    real, known = stats.permutation_test, dict[Any, Any]()

    def permuted(data: Any, statistic: Any, **options: Any) -> Any:
        seen = [cell.cell_contents for cell in statistic.__closure__ or ()]
        key = (statistic.__code__, pickle.dumps((data, seen, options)))
        if key not in known:
            known[key] = real(data, statistic, **options)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stats, "permutation_test", permuted)
        yield


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Ran]:
    """Give a function that runs a command in a folder of its own, and returns what it left."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Ran:
        return run_with(capfd, *arguments)

    return run
