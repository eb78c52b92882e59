"""`compare` of more than two runs: a table, and the front of throughput against latency."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from otel_lifecycle._analysis.comparison.sweep import SweepRun, with_front
from tests.cli.generator import Load, write
from tests.cli.running import Ran


def run(source: str, throughput: float | None, latency: float | None) -> SweepRun:
    """Return a run that has two figures."""
    return SweepRun(
        source=source,
        requests=10,
        success_rate=1.0,
        request_throughput=throughput,
        token_throughput=None,
        ttft_p95=None,
        tpot_p95=None,
        e2e_completed_p95=latency,
    )


def test_the_front_is_what_no_other_run_beats_in_both() -> None:
    """Equal runs do not beat each other, and a run without a figure is not on the front."""
    runs = [run("a", 1, 1.0), run("b", 2, 2.0), run("c", 1.5, 2.5), run("d", 2, 2.0), run("e", None, 0.1)]
    assert [one.front for one in with_front(runs)] == [True, True, False, True, False]


@pytest.mark.long
def test_any_number_of_runs_are_compared(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """More slots give more throughput and less latency; the page draws it."""
    for slots in (1, 2, 4):
        with (tmp_path / f"{slots}.json").open("wb") as out:
            write(Load(requests=60, slots=slots, rate=4.0), out)
    told = cli("compare", "1.json", "2.json", "4.json", "--html", "page.html", "--json").json
    assert (told["schema_version"], told["throughput"]) == (1, "token_throughput")
    assert [(one["name"], one["requests"], one["front"]) for one in told["runs"]] == [
        ("1.json", 60, False),
        ("2.json", 60, False),
        ("4.json", 60, True),
    ]
    assert told["runs"][0]["e2e_completed_p95"] > told["runs"][2]["e2e_completed_p95"]
    assert "token throughput against E2E p95, 3 runs" in (tmp_path / "page.html").read_text()
    assert "3 runs, on the front: 4.json" in cli("compare", "1.json", "2.json", "4.json").out
    assert cli("compare", "1.json", "2.json", "4.json", "--markdown").out.startswith("## 3 runs")
    cases = ET.fromstring(cli("compare", "1.json", "2.json", "4.json", "--junit").out).findall("testcase")
    assert [(case.get("name"), [one.tag for one in case]) for case in cases] == [
        (f"{slots}.json", ["system-out"]) for slots in (1, 2, 4)
    ]
    assert "requests 60, success_rate" in (cases[0][0].text or "")


def test_gates_are_for_two_sides(cli: Callable[..., Ran]) -> None:
    """A gate names no pair of a sweep."""
    assert cli("compare", "a", "b", "c", "--fail-on", "ttft.p95=+5%").code == 2
