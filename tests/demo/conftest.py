"""Fixtures around the example server: the model, and the server on a free port with telemetry of its own."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.telemetry import Telemetry

# Without the extra `demo` these cannot even be imported; `make test-demo` and `make test` install it.
collect_ignore = (
    []
    if all(importlib.util.find_spec(name) for name in ("fastapi", "httpx", "rich", "uvicorn", "xllamacpp"))
    else ["test_breakdown.py", "test_demo_run.py", "test_ground_truth.py", "test_many_streams.py"]
)


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The small real model, fetched if it is not here."""
    from examples import model

    return model.fetch()


@pytest.fixture
def address(fresh_globals: None, telemetry: Telemetry, model_path: Path) -> Iterator[str]:
    """Serve the model with ``telemetry``'s providers as the global ones, as the server of an app has them."""
    from opentelemetry import metrics, trace

    from examples import llama_server

    trace.set_tracer_provider(telemetry.tracer_provider)
    metrics.set_meter_provider(telemetry.meter_provider)
    with llama_server.served(llama_server.load(model_path)) as url:
        yield url
