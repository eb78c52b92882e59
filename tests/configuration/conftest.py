"""A process as it is before ``configure()``, for each test anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import otel_lifecycle as lifecycle
from otel_lifecycle._configuration import setup
from otel_lifecycle._core.engines import EngineLogs
from otel_lifecycle._runtime import runtime


@pytest.fixture(autouse=True)
def fresh_process(fresh_globals: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No global providers and no configuration; what the test configures is shut down after it."""
    monkeypatch.setattr(setup, "_default", setup._Default())
    yield
    lifecycle.shutdown(timeout=5)
    runtime().record_exceptions = False
    runtime().engines = EngineLogs()
