"""No bytes whatever make a command fail otherwise than it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_lifecycle._analysis.diagnosis.diagnosis import diagnose
from otel_lifecycle._analysis.document import report_of
from otel_lifecycle._analysis.settings import WorkloadSettings
from otel_lifecycle._analysis.workload import gather
from otel_lifecycle._table.errors import Unusable
from otel_lifecycle._table.events.log import read_logs
from otel_lifecycle._table.events.replayed import replayed
from otel_lifecycle._table.sources.reader import Reader
from otel_lifecycle._table.sources.tally import ReadingTally
from tests.cli.forms import FORMS
from tests.cli.generator import Load, line, simulate, spans_of
from tests.cli.live import serve, server
from tests.support.examples import scaled

EVERYTHING = settings(
    max_examples=scaled(60), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
# Reading a file to its end and saying everything of it takes 0.2 s, whatever it holds, and there are a dozen forms.
EVERY_FORM = settings(EVERYTHING, max_examples=scaled(60, quick=2))
EVERY_VALUE = settings(EVERYTHING, max_examples=scaled(60, quick=6))


def read(path: Path) -> None:
    """Read a file to the end, and say everything of it."""
    tally = ReadingTally()
    try:
        workload = gather(Reader([str(path)], tally), WorkloadSettings(group_by="model"), tally)
    except Unusable:
        return
    diagnose(workload, report_of(workload, []))


@pytest.fixture(scope="module")
def sound() -> dict[str, bytes]:
    """A file of every form."""
    with server(token_times=True) as process:
        serve(process, (0.2, 0.3, 1.0), (1.1, 1.2), ("complete", 1.3))
        proto = process.proto()
    return {name: form(proto) for name, form in FORMS.items()}


@pytest.mark.parametrize("form", FORMS)
@EVERY_FORM
@given(data=st.data())
def test_damaged_files_are_read_or_refused(
    sound: dict[str, bytes], form: str, tmp_path: Path, data: st.DataObject
) -> None:
    """Bytes are cut off, changed, doubled and put in."""
    content = bytearray(sound[form])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(len(content) - 1, 0)))
        change = data.draw(st.sampled_from(["cut", "flip", "double", "insert"]))
        if change == "cut":
            del content[at:]
        elif change == "flip" and content:
            content[at] ^= data.draw(st.integers(1, 255))
        elif change == "double":
            content[at:at] = content[at : at + data.draw(st.integers(1, 200))]
        else:
            content[at:at] = data.draw(st.binary(max_size=20))
    path = tmp_path / "damaged"
    path.write_bytes(bytes(content))
    read(path)


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=5,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return every place within a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [path] if path else []
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


DOCUMENT = json.loads(line(spans_of(next(simulate(Load(requests=1))), Load(requests=1))))
PLACES = places(DOCUMENT)


@pytest.mark.long
@EVERY_VALUE
@given(changes=st.lists(st.tuples(st.sampled_from(PLACES), VALUES), min_size=1, max_size=3))
def test_values_of_any_type_in_any_place_are_read_or_counted(tmp_path: Path, changes: list[tuple[Any, Any]]) -> None:
    """A document that is JSON, and not what the protocol says."""
    document = json.loads(json.dumps(DOCUMENT))
    for path, value in changes:
        at = document
        try:
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(document) + "\n")
    read(path)


@EVERYTHING
@given(
    rows=st.lists(
        st.dictionaries(
            st.sampled_from(["event", "timestamp", "request_id", "count", "choice", "model", "reason"]),
            st.one_of(VALUES, st.sampled_from(["arrive", "admit", "token", "complete", "cancel", "preempt"])),
            max_size=6,
        ),
        max_size=8,
    )
)
def test_event_logs_of_any_content_are_replayed_or_refused(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    """Every line that is an event is taken, every other one counted."""
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    try:
        for log in read_logs([str(path)], ReadingTally()):
            replayed(log, "default", 10**18)
    except Unusable:
        return
