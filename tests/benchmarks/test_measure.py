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
