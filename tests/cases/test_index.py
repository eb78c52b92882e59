"""The page of cases against the tests there are."""

from __future__ import annotations

import pytest

from tests.cases import index

pytestmark = pytest.mark.source


def test_every_case_has_a_test() -> None:
    """A row of the case table, or a test of its own."""
    table = index.in_the_table()
    assert [number for number, tests in index.covered().items() if not tests and number not in table] == []


def test_every_number_is_a_case() -> None:
    """A test does not bear the number of a case that there is not."""
    assert set(index.covered()) == set(index.TITLES)


def test_every_test_named_exists() -> None:
    """Those that cover a case without its number in their name."""
    there = {f"{file}::{name}" for file, names in index.functions().items() for name in names}
    assert {test for tests in index.ALSO.values() for test in tests} - there == set()


def test_the_page_is_current() -> None:
    """`python -m tests.cases.index` writes it anew."""
    assert index.FILE.read_text(encoding="utf-8") == index.page()
