"""The registry of names against the constants of the code; every test holds what it sees on the wire against it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from docs.generate import groups, known_attributes
from otel_lifecycle import semconv
from tests.support.registry import wrong_attributes, wrong_points, wrong_received
from tests.support.telemetry import Telemetry

if TYPE_CHECKING:
    from tests.support.plain import Point

ROOT = Path(__file__).resolve().parents[1]
PREFIXES = {semconv.SHARE_PREFIX, semconv.SLO_MISSED_PREFIX, semconv.STARTUP_PARAMETER_PREFIX}
NOT_ATTRIBUTES = {*PREFIXES, semconv.VIOLATION_SPAN_EVENT}


def constants() -> set[str]:
    """Return the attributes of ours that the code has constants for."""
    values = {value for value in vars(semconv).values() if isinstance(value, str) and value.startswith("inference.")}
    shares = {semconv.SHARE_PREFIX + stage for stage in ("queue", "preprocessing", "prefill", "decode")}
    missed = {semconv.SLO_MISSED_PREFIX + objective for objective in ("ttft", "tpot", "e2e")}
    return (values - NOT_ATTRIBUTES) | shares | missed


def test_every_attribute_of_the_code_is_registered_and_no_other() -> None:
    """A new attribute needs its type, meaning and requirement level before it leaves the process."""
    assert set(known_attributes()) == constants()


def test_every_attribute_that_a_group_uses_is_registered() -> None:
    """Spans, events and metrics refer to registered names, or to those of the conventions."""
    used = {
        attribute["ref"]
        for name in ("spans.yaml", "metrics.yaml")
        for group in groups(name)
        for attribute in group.get("attributes", ())
    }
    assert {name for name in used if name.startswith("inference.")} <= set(known_attributes())


def test_every_attribute_is_used_somewhere() -> None:
    """One that no span, event, link or metric uses is a leftover."""
    used = {
        attribute["ref"]
        for name in ("spans.yaml", "metrics.yaml")
        for group in groups(name)
        for attribute in group.get("attributes", ())
    }
    assert set(known_attributes()) - used == {semconv.LINK_REASON, semconv.LINK_TIME}


def test_every_attribute_is_explained() -> None:
    """A brief of a sentence, and a stability."""
    bad = [
        name
        for name, about in known_attributes().items()
        if not about["brief"].endswith(".") or about["stability"] != "development"
    ]
    assert bad == []


@pytest.mark.parametrize(
    ("attributes", "faults"),
    [
        ({"inference.ttft": 1.0, "inference.outcome": "completed", "theirs": 1}, 0),
        ({"inference.ttft": 1}, 1),
        ({"inference.legal": 1}, 1),
        ({"inference.outcome": "done"}, 1),
        ({"inference.unheard_of": 1}, 1),
    ],
)
def test_a_wrong_name_or_type_is_found(attributes: dict[str, object], faults: int) -> None:
    """The check that every test's spans go through finds what it is for."""
    assert len(wrong_attributes(attributes)) == faults


def test_a_wrong_metric_is_found(telemetry: Telemetry) -> None:
    """A name, a unit, an attribute or a value that the registry does not have; points of others are theirs."""
    with telemetry.request() as request:
        request.admit()
        request.cancel()
    (point,) = (each for each in telemetry.points("inference.requests"))
    assert wrong_points([point]) == []
    for change in (
        {"metric": "inference.unheard_of"},
        {"unit": "s"},
        {"attributes": {"inference.legal": True}},
        {"attributes": {"inference.outcome": "done"}},
    ):
        changed = cast("Point", {**point, **change})
        assert len(wrong_points([changed])) == 1, change
        changed["scope"] = {**point["scope"], "name": "theirs"}
        assert wrong_points([changed]) == []
    (span,) = telemetry.spans("chat")
    assert wrong_received([span]) == []
    span["attributes"]["inference.unheard_of"] = 1
    assert len(wrong_received([span])) == 1


FRESH = """
import json
from docs.generate import pages
print(json.dumps({str(path): text for path, text in pages().items()}))
"""


@pytest.mark.process
@pytest.mark.source
def test_generated_pages_are_current() -> None:
    """`python -m docs.generate` writes them anew; a process of its own makes them, which no other test has changed."""
    command = [sys.executable, "-c", FRESH]
    made = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100, cwd=ROOT).stdout
    assert [path for path, text in json.loads(made).items() if Path(path).read_text(encoding="utf-8") != text] == []
