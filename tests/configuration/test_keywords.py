"""The keywords of ``configure()``: typed, documented and read are one set."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import otel_lifecycle as lifecycle
from otel_lifecycle._configuration.settings import Settings
from otel_lifecycle.types import SettingKeywords

KEYWORDS = set(SettingKeywords.__annotations__)


def test_keywords_are_the_settings() -> None:
    """Each keyword is a setting that is read, and each setting a keyword; three settings are read from others."""
    assert KEYWORDS - {"protocol"} == set(Settings.__dataclass_fields__) - {
        "protocols",
        "exporters",
        "default_endpoint",
    }


def test_each_keyword_is_documented() -> None:
    """The documentation of the keywords names each of them."""
    told = inspect.getdoc(SettingKeywords) or ""
    assert [name for name in sorted(KEYWORDS) if f"``{name}``" not in told] == []


def test_help_shows_each_keyword() -> None:
    """What ``configure()`` takes is shown one by one."""
    assert set(inspect.signature(lifecycle.configure).parameters) == KEYWORDS


def test_an_unknown_keyword_is_a_type_error() -> None:
    """As for any function of Python, and before anything is set up."""
    arguments: dict[str, Any] = {"sevice_name": "tests"}
    with pytest.raises(TypeError, match="configure\\(\\) got an unexpected keyword argument 'sevice_name'"):
        lifecycle.configure(**arguments)
