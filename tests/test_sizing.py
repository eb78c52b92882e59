"""The sizing page says what the code computes."""

from __future__ import annotations

from pathlib import Path

from tests import sizing

PAGE = (Path(__file__).parents[1] / "docs" / "operate" / "sizing.md").read_text()


def test_the_page_has_the_figures_that_are_computed() -> None:
    """Every row of its two tables; `python -m tests.sizing` prints them."""
    rows = [*sizing.one_replica(), *sizing.fleet()]
    assert [row for row in rows if row not in PAGE] == []


def test_what_a_switch_saves() -> None:
    """The convention's metrics are a fifth of all series; native histograms leave a tenth."""
    every, ours = sizing.replica(), sizing.replica(gen_ai_metrics=False)
    assert 0.75 < ours.series / every.series < 0.85
    assert every.series - every.buckets < 0.2 * every.series
