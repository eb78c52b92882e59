"""Every test here is alone with the processors it makes."""

from __future__ import annotations

import pytest

from otel_lifecycle._runtime import runtime


@pytest.fixture(autouse=True)
def no_other_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide processors that other tests left alive: an unsampled request would go to the oldest of them."""
    monkeypatch.setattr(runtime(), "_processors", [])
