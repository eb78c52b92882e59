"""Names of conditions may be of a class of text whose comparison raises: what Python lets through raises nowhere."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import otel_lifecycle as lifecycle
from otel_lifecycle._guard import guard
from tests.support.telemetry import Telemetry

ENOUGH = 40
"""Comparisons: more than a call makes of one name."""


class OddName(str):
    """It raises when it is compared, after so many comparisons that are ``left``."""

    __slots__ = ()
    __hash__ = str.__hash__
    left = 10**9

    def __eq__(self, other: object) -> bool:
        OddName.left -= 1
        if OddName.left < 0:
            raise RuntimeError
        return str.__eq__(self, other)


@pytest.fixture(autouse=True)
def _at_first_it_raises_nothing() -> Iterator[None]:
    yield
    OddName.left = 10**9


def open_it(telemetry: Telemetry, **odd: Any) -> None:
    """Open a request with it."""
    lifecycle.request(tracer_provider=telemetry.tracer_provider, **odd).cancel()


def set_it(telemetry: Telemetry, **odd: Any) -> None:
    """Set it."""
    with telemetry.request() as request:
        request.set(**odd)
        request.cancel()


def part_of_it(telemetry: Telemetry, **odd: Any) -> None:
    """Open a part with it."""
    with telemetry.request() as request:
        request.part(**odd).cancel()
        request.cancel()


def trace_it(telemetry: Telemetry, **odd: Any) -> None:
    """Trace a function with it."""
    lifecycle.traced(tracer_provider=telemetry.tracer_provider, **odd)(lambda: None)()


@pytest.mark.parametrize("name", ["model", "request_id", "input_tokens"])
@pytest.mark.parametrize("call", [open_it, set_it, part_of_it, trace_it])
def test_a_name_whose_comparison_raises(telemetry: Telemetry, call: Callable[..., None], name: str) -> None:
    """Python compares it with the parameters, outside of our code; after that it is a plain text."""
    faults = guard.faults
    for value in ("1", "1", "2", "2"):
        telemetry.request(model=value).cancel()
    for left in range(ENOUGH):
        OddName.left = 10**9
        odd: dict[str, Any] = {OddName(name): 1 if name == "input_tokens" else "1"}
        OddName.left = left
        try:
            call(telemetry, **odd)
        except RuntimeError as error:
            frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
            assert set(frames) == {__file__}
    assert (OddName.left >= 0, guard.faults) == (True, faults)


def test_no_name_is_kept_as_one_request_gave_it(telemetry: Telemetry) -> None:
    """It would be compared with those of later requests, and what it refers to would not be freed."""
    for model in ("a", "a", "b", "b"):
        telemetry.request(model=model).cancel()
    odd: dict[str, Any] = {OddName("model"): "a"}
    telemetry.request(**odd).cancel()
    OddName.left = 0
    telemetry.request(model="a").cancel()
    points = telemetry.points("inference.requests")
    counted = {point["attributes"]["gen_ai.request.model"]: point["value"] for point in points}
    assert counted == {"a": 4, "b": 2}
