"""The README is held against the code: its tables are whole, its code runs, its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from otel_lifecycle import semconv
from otel_lifecycle._configuration.settings import PREFIX, Settings
from otel_lifecycle._core.lifecycle import SHAPES, TERMINAL_EVENTS

pytestmark = pytest.mark.source

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
# Named by what is on the wire elsewhere: events, not attributes; prefixes are written with <name>.
NOT_ATTRIBUTES = {"VIOLATION_SPAN_EVENT", "SHARE_PREFIX", "STARTUP_PARAMETER_PREFIX", "EXCEPTION_TYPE"}


def table(heading: str) -> list[list[str]]:
    """The cells of the first table below the line that starts with ``heading``."""
    lines = README.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(heading)) + 2
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_metric_table_is_the_code() -> None:
    """Every instrument stands there, in the code's order, with its type, unit and own attributes."""
    told = [
        [name.strip("`"), kind.replace(" ", "_"), unit, re.findall(r"`([^`]+)`", own)]
        for name, kind, unit, own in table("| metric | type |")
    ]
    assert told == [[row.name, row.kind, row.unit, list(row.attributes)] for row in semconv.METRICS]


def test_attribute_table_is_the_code() -> None:
    """Every attribute of a span or a metric stands there, and nothing else does."""
    told = {name for row in table("| span attributes |") for name in re.findall(r"`([^`]+)`", row[0])}
    known = {
        value
        for name, value in vars(semconv).items()
        if isinstance(value, str)
        and value.startswith(("gen_ai.", "inference.", "error."))
        and name not in NOT_ATTRIBUTES
    }
    of_metrics = {semconv.TOKEN_DIRECTION, semconv.SLO_OBJECTIVE}
    assert told - {"inference.share.<stage>"} == known - of_metrics


def test_lifecycle_table_is_the_code() -> None:
    """Every row of the default shape stands there with the same note."""
    told = {
        (state, event, following, note)
        for states, events, followings, note in table("| state | event |")
        for state in states.split(", ")
        for event, following in zip(events.split(", "), followings.split(", "), strict=True)
    }
    rows = SHAPES["default"].rows
    abnormal = ("cancel", "timeout", "fail")
    plain = {(row.state, row.event, row.next, row.note) for row in rows if row.event not in abnormal}
    ends = {("any of these", event, TERMINAL_EVENTS[event], "the state it ended in is kept") for event in abnormal}
    assert told == plain | ends


def test_settings_table_is_the_code() -> None:
    """Every setting that has a variable stands there."""
    told = {
        PREFIX + name.removeprefix(PREFIX).removeprefix("_")
        for row in table("| variable | default |")
        for name in re.findall(r"`([A-Z_0-9]+)`", row[0])
    }
    fields = {name for name in Settings.__dataclass_fields__ if name not in {"exporters", "protocols", "slo"}}
    names = {*fields, "protocol", "slo_ttft", "slo_tpot", "slo_e2e"} - {"resources", "resource_attributes"}
    assert told == {PREFIX + name.upper() for name in names}


def test_code_runs(tmp_path: Path) -> None:
    """The Python block runs as it stands, and prints its answer."""
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(code, encoding="utf-8")
    environ = {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "['a', 'b', 'c']\n", "")


def test_links_lead_somewhere() -> None:
    """Every relative link names a file of the repository."""
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_it_is_short() -> None:
    """A README is read; below 200 lines it may be."""
    assert len(README.splitlines()) < 200
