"""Text for a pipe that is written without rich is what rich writes there."""

from __future__ import annotations

import io
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from otel_lifecycle._analysis.diagnosis.case import Finding
from otel_lifecycle._analysis.diagnosis.diagnosis import Diagnosis
from otel_lifecycle._cli.render.plain import written
from otel_lifecycle._cli.render.sections import Presentation, Section, Table
from otel_lifecycle._cli.render.terminal import show_presentation
from tests.support.examples import scaled

WORDS = st.sampled_from(["queue", "p50 / p95", "é", "…", "17 ms", "a" * 30, "request", "(12)", "x", "1,024"])
ODD = st.sampled_from(["", " ", "[bold]", "日本", "a\nb", "z" * 130, "\N{ZERO WIDTH JOINER}", "two  blanks"])
CELLS = st.one_of(WORDS, WORDS, WORDS, st.lists(WORDS, max_size=3).map(" ".join), ODD)
LINES = st.one_of(st.lists(WORDS, min_size=1, max_size=40).map(" ".join), ODD)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Return a table of some columns, of which some may leave."""
    columns = tuple(draw(st.lists(CELLS, min_size=1, max_size=7, unique=True)))
    row = st.tuples(*[CELLS] * len(columns))
    return Table(
        title=draw(CELLS),
        columns=columns,
        rows=tuple(draw(st.lists(row, min_size=1, max_size=4))),
        left=draw(st.integers(0, 7)),
        note=draw(LINES),
        wide=frozenset(draw(st.sets(st.sampled_from(columns)))),
    )


FINDINGS = st.builds(
    Finding,
    cause=st.just("queue"),
    symptom=LINES,
    look_at=LINES,
    evidence=st.lists(LINES, max_size=3).map(tuple),
    confidence=st.sampled_from(["strong", "moderate", "weak"]),
)
DIAGNOSES = st.builds(Diagnosis, headline=LINES, findings=st.lists(FINDINGS, max_size=3).map(tuple))


def presentation(
    *found: Table, diagnosis: Diagnosis | None = None, opening: str = "", closing: str = ""
) -> Presentation:
    """Return a result of some tables."""
    sections = [Section(title="", tables=found)]
    return Presentation(
        command="report",
        headline="",
        plain={},
        sections=sections,
        diagnosis=diagnosis,
        opening=opening,
        closing=closing,
        notes=[opening],
    )


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all three streams be files."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(io.BytesIO(), "utf-8"))


def by_rich(found: Presentation) -> str:
    """Return what rich writes into a pipe."""
    out = io.StringIO()
    show_presentation(Console(file=out, highlight=False, emoji=False, width=120), found)
    return out.getvalue()


@pytest.mark.usefixtures("pipe")
@settings(
    max_examples=scaled(300, quick=80),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)
@given(found=st.lists(tables(), max_size=2), diagnosis=st.one_of(st.none(), DIAGNOSES), opening=LINES, closing=LINES)
def test_what_is_plain_is_what_rich_writes(
    found: list[Table], diagnosis: Diagnosis | None, opening: str, closing: str
) -> None:
    """Tables, notes, frames and broken lines; what is not plain is left to rich."""
    made = presentation(*found, diagnosis=diagnosis, opening=opening, closing=closing)
    text = written(made)
    assert text is None or text == by_rich(made)


@pytest.mark.usefixtures("pipe")
def test_a_usual_report_is_plain() -> None:
    """Lines that are too long are broken, in a note and in a frame."""
    note = " ".join(["exact"] * 30)
    table = Table(title="Latency", columns=("metric", "p50 / p95"), rows=(("TTFT", "1 / 2 ms (9)"),), note=note)
    weak = Finding(cause="queue", symptom="a wait", look_at="slots", evidence=(note,), confidence="weak")
    made = presentation(
        table, diagnosis=Diagnosis(headline="queue", findings=(weak,)), opening="9 requests", closing="the end"
    )
    assert written(made) == by_rich(made)


@pytest.mark.usefixtures("pipe")
@pytest.mark.parametrize(
    ("name", "value"), [("FORCE_COLOR", "1"), ("TTY_COMPATIBLE", "1"), ("TTY_INTERACTIVE", "1"), ("JUPYTER_LINES", "9")]
)
def test_what_rich_takes_for_a_terminal_is_left_to_it(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """A CI server asks for colours by a variable."""
    monkeypatch.setenv(name, value)
    assert written(presentation(opening="9 requests")) is None


@pytest.mark.usefixtures("pipe")
def test_other_encodings_are_left_to_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    """It draws frames of ASCII then."""
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "latin-1"))
    assert written(presentation(opening="9 requests")) is None
