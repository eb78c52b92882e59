"""Frames that do not say their size, and the usage figure that proves what they were."""

from __future__ import annotations

from typing import Any

import pytest

from otel_lifecycle._core.attributes import end_attributes
from otel_lifecycle._core.lifecycle import SHAPES
from otel_lifecycle._core.report import build_report
from otel_lifecycle._core.timeline import Timeline
from otel_lifecycle._core.verdict import Finished, assess

MS = 10**6


def attributes(frames: int, usage: int | None, *, assumed: bool = True, choices: int = 1) -> dict[str, Any]:
    """Return the token attributes of a completed request whose frames came 20 ms apart."""
    timeline = Timeline(SHAPES["default"])
    for event in ("arrive", "admit", "input_ready"):
        timeline.apply(event, 0)
    timeline.assumed = assumed
    for number in range(frames):
        timeline.apply("token" if number else "first_token", (1000 + 20 * number) * MS, choice=number % choices)
    timeline.apply("complete", 30_000 * MS)
    report = build_report(timeline, "completed", token_times=False, usage=usage)
    finished = Finished(report=report, usage={} if usage is None else {"output_tokens": usage})
    told = end_attributes(finished, assess(finished))
    names = ("usage.output_tokens", "streamed_tokens", "streamed_chunks", "itl.count", "tpot", "token_span")
    return {name: value for name in names for key, value in told.items() if key.endswith("." + name)}


def test_c91_frames_that_the_figure_proves_to_be_chunks() -> None:
    """Ten frames and 60 tokens: no gap is a sample, TPOT goes by the figure, and the frames are called chunks."""
    assert attributes(10, 60) == {
        "usage.output_tokens": 60,
        "streamed_chunks": 10,
        "tpot": pytest.approx(0.18 / 59, abs=1e-15),
        "token_span": 0.18,
    }


def test_c91_two_choices() -> None:
    """TPOT is the choices' spans over the figure less the choices."""
    assert attributes(10, 60, choices=2) == {
        "usage.output_tokens": 60,
        "streamed_chunks": 10,
        "tpot": pytest.approx((0.16 + 0.16) / 58, abs=1e-15),
        "token_span": 0.18,
    }


@pytest.mark.parametrize(
    ("frames", "usage"),
    [
        pytest.param(10, 10, id="twin"),
        pytest.param(209, 212, id="near-twin"),
        pytest.param(10, 13, id="three more"),
        pytest.param(1000, 1030, id="three percent more"),
        pytest.param(10, 3, id="fewer"),
    ],
)
def test_c91_figure_within_the_tolerance(frames: int, usage: int) -> None:
    """Each count keeps its own, and the frames' is TPOT's."""
    span = 0.02 * (frames - 1)
    assert attributes(frames, usage) == {
        "usage.output_tokens": usage,
        "streamed_tokens": frames,
        "itl.count": frames - 1,
        "tpot": pytest.approx(0.02),
        "token_span": pytest.approx(span),
    }


@pytest.mark.parametrize(("frames", "usage"), [(10, 14), (1000, 1031)])
def test_c91_figure_beyond_the_tolerance(frames: int, usage: int) -> None:
    """One token more than the tolerance decides."""
    assert attributes(frames, usage)["streamed_chunks"] == frames


def test_c91_marks_of_the_server_are_not_in_doubt() -> None:
    """Tokens that the server marks itself, or whose number the engine states, stay as they are."""
    found = attributes(10, 60, assumed=False)
    assert (found["streamed_tokens"], found["itl.count"], found["tpot"]) == (10, 9, pytest.approx(0.02))


def test_c91_without_a_figure() -> None:
    """Nothing speaks against the frames: they are tokens."""
    assert attributes(10, None)["streamed_tokens"] == 10
