"""Holds every benchmark against its budget, for those who run them through pytest."""

from __future__ import annotations

import faulthandler

import pytest

from tests.benchmarks.__main__ import main

pytestmark = pytest.mark.bench


@pytest.mark.timeout(3600)
def test_no_budget_is_missed() -> None:
    """One that noise or a coarse clock hides is said to be untold, and not missed."""
    # Pytest takes a test of some minutes for one that hangs, and dumps every stack into the figures.
    faulthandler.cancel_dump_traceback_later()
    assert main() == 0
