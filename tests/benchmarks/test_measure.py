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


def _row(figure: float) -> measure.Budget:
    return measure.Budget(name="row", limit=1.6, interval=measure.Interval(figure, figure - 0.1, figure + 0.1))


def test_a_row_of_several_processes_is_their_median() -> None:
    """A lucky process does not meet the budget for the others, nor does an unlucky one miss it."""
    row = measure.of_processes([_row(figure) for figure in (1.5, 1.49, 1.52, 1.48, 1.7, 1.51, 1.5, 1.51, 1.47)])
    assert row.interval is not None
    assert (row.interval.figure, row.verdict) == (1.5, "met")
    assert measure.of_processes([_row(1.7), _row(1.75), _row(1.8)]).verdict == "MISSED"


def test_processes_on_both_sides_of_the_limit_tell_nothing() -> None:
    """Their median may lie on either side by chance; what a clock was too coarse for stays untold as well."""
    row = measure.of_processes([_row(figure) for figure in (1.4, 1.5, 1.58, 1.65, 1.7)])
    assert (row.verdict, str(row)) == ("untold", "BUDGET row (between 1.4 and 1.7, too noisy) 1.6 untold")
    coarse = measure.Budget(name="row", limit=1.6, doubt="too coarse")
    assert measure.of_processes([_row(1.5), coarse, _row(1.5)]) == coarse
