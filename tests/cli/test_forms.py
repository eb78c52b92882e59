"""Results for people and programs elsewhere: Markdown, JUnit, and JSON with the version of its schema."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.cli.generator import Load, encode, line, simulate, spans_of, write
from tests.cli.running import Ran


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs, and one with an illegal request of a name that means something to Markdown and XML."""
    for name, load in (("a", Load(requests=400)), ("b", Load(requests=400, seed=2, time_per_token=0.03))):
        with (tmp_path / f"{name}.json").open("wb") as out:
            write(load, out)
    made = [spans_of(one, Load(requests=3))[0] for one in simulate(Load(requests=3))]
    changed = {"inference.request.id": "<b>|*x*", "inference.violations": 1, "inference.legal": False}
    made[0]["attributes"] = [item for item in made[0]["attributes"] if item["key"] not in changed] + encode(changed)
    (tmp_path / "odd.json").write_bytes(line(made))
    return tmp_path


@pytest.mark.long
def test_json_says_the_version_of_its_schema(runs: Path, cli: Callable[..., Ran]) -> None:
    """Of each command."""
    assert cli("report", "odd.json", "--json").json["schema_version"] == 1
    assert cli("compare", "a.json", "a.json", "--json").json["schema_version"] == 1
    assert [one["schema_version"] for one in cli("check", "odd.json", "--json").json_lines] == [1]


def test_check_as_junit_and_markdown(runs: Path, cli: Callable[..., Ran]) -> None:
    """A case for each violation; the other requests passed.  The exit code is the same."""
    ran = cli("check", "odd.json", "--junit")
    suite = ET.fromstring(ran.out)
    assert (ran.code, suite.attrib["tests"], suite.attrib["failures"]) == (1, "3", "1")
    (case,) = suite
    assert case.attrib["name"] == "<b>|*x*: (not told)"
    ran = cli("check", "odd.json", "--markdown")
    assert ran.code == 1
    assert ran.out.startswith("## 1 violation in 3 requests\n")
    assert r"\<b\>\|\*x\*" in ran.out


@pytest.mark.long
def test_compare_as_junit_and_markdown(runs: Path, cli: Callable[..., Ran]) -> None:
    """A gate fails its case; a figure never does."""
    ran = cli("compare", "a.json", "b.json", "--fail-on", "tpot.p50=+5%", "--fail-on", "ttft.p50=+900000%", "--junit")
    suite = ET.fromstring(ran.out)
    assert ran.code == 1
    failed = [case.attrib["name"] for case in suite if case.find("failure") is not None]
    assert failed == ["gate tpot.p50=+5%"]
    assert suite.attrib["failures"] == "1"
    assert {"tpot.p50", "gate ttft.p50=+900000%"} <= {case.attrib["name"] for case in suite}
    out = cli("compare", "a.json", "b.json", "--markdown").out
    assert out.startswith("## worse: ")
    assert "| tpot.p50 | worse |" in out


@pytest.mark.long
def test_report_as_junit_and_markdown(runs: Path, cli: Callable[..., Ran]) -> None:
    """A case for each finding; strong evidence fails it."""
    findings = cli("report", "a.json", "--json").json["diagnosis"]["findings"]
    suite = ET.fromstring(cli("report", "a.json", "--junit").out)
    strong = {one["cause"] for one in findings if one["confidence"] == "strong"}
    assert {case.attrib["name"] for case in suite if case.find("failure") is not None} == strong
    out = cli("report", "a.json", "--markdown").out
    assert out.startswith("## 400 requests, ")
    assert "### User latency\n\n| latency | mean | p50 |" in out
    assert "### Where to look next" in out
