"""The table of tests/README.md against the tests there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from .table import CASES

pytestmark = pytest.mark.source

TESTS = Path(__file__).parents[1]
NUMBERS = [
    f"C{number:02}"
    for number in (
        1,
        3,
        4,
        5,
        6,
        7,
        8,
        10,
        11,
        12,
        14,
        16,
        19,
        20,
        21,
        23,
        24,
        26,
        28,
        29,
        30,
        33,
        35,
        36,
        38,
        39,
        41,
        43,
        44,
        47,
        48,
        50,
        52,
        54,
        55,
        56,
        58,
        59,
        61,
        63,
        64,
        65,
        66,
        68,
        69,
        71,
        72,
        73,
        75,
        77,
        78,
        79,
        82,
        84,
        85,
        86,
    )
]
"""Every case there is."""


def rows() -> dict[str, tuple[str, str]]:
    """Return the table: case -> what it is about, and its tests."""
    found = {}
    for line in (TESTS / "README.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if re.fullmatch(r"C\d\d", cells[0]):
            number, about, tests = cells
            assert number not in found, f"two rows of {number}"
            found[number] = (about, tests)
    return found


def functions() -> dict[str, set[str]]:
    """Return the test functions of every file under tests/, by its path there."""
    return {
        path.relative_to(TESTS).as_posix(): {
            node.name
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_")
        }
        for path in TESTS.rglob("test_*.py")
    }


def named(tests: str) -> list[tuple[str, str]]:
    """Return the ``file::function`` pairs of a cell."""
    return [(match[1], match[2]) for match in re.finditer(r"`([\w/.]+)::(\w+)`", tests)]


def test_every_case_has_a_row() -> None:
    """All 56, once each, in order."""
    assert (list(rows()), len(NUMBERS)) == (NUMBERS, 56)


def test_every_row_says_where_its_tests_are() -> None:
    """A test, or a row of the case table."""
    assert [number for number, (about, tests) in rows().items() if not about or not tests] == []


def test_every_test_named_exists() -> None:
    """File and function."""
    there = functions()
    wrong = [
        f"{number}: {file}::{function}"
        for number, (_, tests) in rows().items()
        for file, function in named(tests)
        if function not in there.get(file, set())
    ]
    assert wrong == []


def test_case_table_is_where_the_rows_say() -> None:
    """What a row calls ``table`` is in the case table, and the other way round."""
    claimed = {number for number, (_, tests) in rows().items() if re.search(r"\btable\b", tests)}
    assert claimed == {case.id[:3] for case in CASES}


def test_every_numbered_test_is_named() -> None:
    """A test that bears the number of a case stands in the row of that case."""
    claimed = {(number, function) for number, (_, tests) in rows().items() for _, function in named(tests)}
    there = {
        (f"C{match[1]}", function)
        for file, names in functions().items()
        for function in names
        if (match := re.match(r"test_c(\d\d)_", function))
    }
    assert there - claimed == set()
