"""The conditions of a request: the table, the keywords and their documentation are one set."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import otel_lifecycle as lifecycle
from otel_lifecycle._request.conditions import CONDITIONS
from otel_lifecycle.types import ConditionKeywords


def test_keywords_are_the_table() -> None:
    """Each row is a keyword that type checkers know, and each keyword has a row."""
    assert set(ConditionKeywords.__annotations__) == set(CONDITIONS)


def test_each_condition_is_documented() -> None:
    """The documentation of the keywords names each of them."""
    told = inspect.getdoc(ConditionKeywords) or ""
    assert [name for name in CONDITIONS if f"``{name}``" not in told] == []


def test_help_shows_each_condition_by_name() -> None:
    """What a function takes as ``**conditions`` is shown one by one, with its default."""
    parameters = inspect.signature(lifecycle.request).parameters
    assert {name: parameters[name].default for name in CONDITIONS if parameters[name].default is not None} == {
        "role": "whole",
        "traffic": "live",
    }
    assert {parameter.kind for parameter in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize("keyword", ["modell", "_model", "x" * 1000])
def test_an_unknown_keyword_is_a_type_error(keyword: str) -> None:
    """As for any function of Python; nothing is opened."""
    arguments: dict[str, Any] = {"model": "m", keyword: 1}
    with pytest.raises(TypeError, match="unexpected keyword argument") as caught:
        lifecycle.request(**arguments)
    assert len(str(caught.value)) < 200
