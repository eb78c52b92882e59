"""The bench as a whole ends in time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.benchmarks import measure


@pytest.fixture(autouse=True)
def _no_end() -> Iterator[None]:
    yield
    measure._end.clear()


def test_rows_share_what_time_there_is() -> None:
    """Where no time is left, a row makes one round instead of those its allowance would let it make."""
    rounds: list[int] = []

    def trial() -> int:
        rounds.append(1)
        return 1

    measure.allow(0)
    measure.interleave({"ours": trial}, lambda samples: False, 30)
    # One more, which is not counted, comes before.
    assert len(rounds) == 2


def test_an_allowance_that_fits_is_not_cut() -> None:
    """The end of all rows takes nothing from one that ends before it."""
    measure.allow(1000)
    soon = measure.until(1)
    assert soon < measure.until(2000)


def _row(figure: float | None) -> measure.Budget:
    interval = None if figure is None else measure.Interval(figure, figure - 0.1, figure + 0.1)
    return measure.Budget(name="row", limit=1.6, interval=interval, doubt="too noisy" if figure is None else None)


def test_a_row_of_several_processes_is_the_middle_one() -> None:
    """A lucky process does not meet the budget for the others, nor does an unlucky one miss it."""
    row = measure.middle_of([_row(figure) for figure in (1.7, 1.5, 1.65, 1.4, 1.62)])
    assert row.interval is not None
    assert row.interval.figure == 1.62
    assert row.interval.low <= 1.5
    assert row.interval.high >= 1.65
    assert row.verdict == "MISSED"
    assert measure.middle_of([_row(1.5)]) == _row(1.5)


def test_what_noise_hides_counts_as_the_worst_process() -> None:
    """A row is met where most processes met it, and untold where most told nothing."""
    assert measure.middle_of([_row(None), _row(1.5), _row(1.55)]).verdict == "met"
    assert measure.middle_of([_row(None), _row(1.5), _row(None)]).verdict == "untold"
