"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.running import Ran, run_with


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Ran]:
    """Give a function that runs a command in a folder of its own, and returns what it left."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Ran:
        return run_with(capfd, *arguments)

    return run
