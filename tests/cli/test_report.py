"""``report`` as a person types it and reads it: its options, its first line, and a terminal of 80 columns."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from otel_lifecycle._analysis.diagnosis.case import Finding
from otel_lifecycle._analysis.diagnosis.diagnosis import Diagnosis
from otel_lifecycle._analysis.document import report_of
from otel_lifecycle._analysis.settings import WorkloadSettings
from otel_lifecycle._cli.render.report import presented, title_of
from otel_lifecycle._cli.render.report_tables import parts
from otel_lifecycle._cli.render.terminal import show_diagnosis, show_tables
from tests.cli.generator import START_NS, Load, line, simulate, spans_of, write
from tests.cli.running import Ran
from tests.cli.test_evidence import workload_of


def run_of(folder: Path, load: Load) -> Path:
    """Write a simulated run."""
    with (folder / "run.json").open("wb") as out:
        write(load, out)
    return folder / "run.json"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--from", "1e300"), "--from: '1e300' lies outside the years 1970 to 2262"),
        (("--to", "-5"), "--to: '-5' lies outside the years 1970 to 2262"),
        (
            ("--from", "1770000000000"),
            "'1770000000000' lies outside the years 1970 to 2262: epoch seconds are meant, and this looks like milli",
        ),
        (("--from", "1770000000000000000"), "this looks like nanoseconds"),
        (("--slo", "ttft=1,nope=1"), "there is no objective 'nope'; it is written ttft=0.5,tpot=0.05,e2e=30"),
        (("--limit", "-3"), "-3 is not in the range x>=0"),
    ],
)
def test_options_that_make_no_sense_are_code_2(cli: Callable[..., Ran], options: tuple[str, ...], reason: str) -> None:
    """What is wrong is said."""
    ran = cli("report", "-", *options)
    assert ran.code == 2
    assert reason in ran.err


@pytest.mark.parametrize("option", ["--from", "--to"])
def test_one_end_of_a_window_is_enough(cli: Callable[..., Ran], tmp_path: Path, option: str) -> None:
    """The other is where the requests begin or end."""
    run_of(tmp_path, Load(requests=100))
    report = cli("report", "run.json", option, START_NS // 10**9 + 10, "--json").json
    assert 0 < report["requests"]["total"] < 100
    assert report["window"]["chosen"]
    assert report["window"]["seconds"] < 100
    assert report["output"]["request_throughput"] > 0.5


def test_help_has_an_example(cli: Callable[..., Ran]) -> None:
    """One that can be typed."""
    assert "\n    otel-lifecycle report traces.json\n" in cli("report", "--help").out


@pytest.mark.parametrize(
    ("counts", "rate", "title"),
    [
        ({"total": 31, "terminated": 31, "incomplete": 0}, 1.0, "31 requests, 100.0 % completed"),
        (
            {"total": 31, "terminated": 1, "incomplete": 30},
            1.0,
            "31 requests, 1 ended, 100.0 % of those completed; 30 never ended",
        ),
        ({"total": 2, "terminated": 0, "incomplete": 2}, None, "2 requests, 0 ended; 2 never ended"),
        ({"total": 0, "terminated": 0, "incomplete": 0}, None, "0 requests, - completed"),
    ],
)
def test_the_first_line_tells_of_requests_that_never_ended(
    counts: dict[str, int], rate: float | None, title: str
) -> None:
    """A rate over one of 31 is not a rate of all."""
    assert title_of({"requests": counts, "output": {"success_rate": rate}}) == title


def test_the_first_line_of_a_run(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """With what it was read from; warnings follow it."""
    run_of(tmp_path, Load(requests=20, cancelled=0, failed=0))
    lines = cli("report", "run.json", "--group-by", "modle").out.splitlines()
    assert lines[0] == "20 requests, 100.0 % completed, from run.json"
    assert lines[1].startswith("no request has 'modle', so there is nothing to group by")


def test_what_must_be_known_first_is_a_warning() -> None:
    """A key that no request has, and a source that holds a sample of the traces."""
    workload = workload_of(Load(requests=20), WorkloadSettings(group_by="modle"))
    told = report_of(workload, ["run.json", "http://jaeger:16686?service=s"])["warnings"]
    assert len(told) == 2
    assert "those of the sample and not of the service" in told[0]
    assert told[1].startswith("no request has 'modle', so there is nothing to group by; it is")
    assert report_of(workload_of(Load(requests=20), WorkloadSettings(group_by="model")), ["run.json"])["warnings"] == []


def test_classes_and_groups_have_the_number_of_samples_of_each_figure(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """A group in which one of two has a TTFT and one has completed says so."""
    load = Load(requests=2, cancelled=0, failed=0)
    one, other = (spans_of(request, load)[0] for request in simulate(load))
    lost = {"inference.ttft", "inference.tpot"}
    other["attributes"] = [item for item in other["attributes"] if item["key"] not in lost]
    next(item for item in other["attributes"] if item["key"] == "inference.outcome")["value"] = {
        "stringValue": "failed"
    }
    (tmp_path / "run.json").write_bytes(line([one, other]))
    report = cli("report", "run.json", "--group-by", "model", "--json").json
    row = parts("", "model", report["groups"]).rows[0]
    assert [cell[-4:] for cell in row[3:6]] == [" (1)", " (1)", " (1)"]
    assert row[1] == "2"


def test_no_name_steers_the_terminal(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """Whatever a server calls its models, reasons and classes."""
    evil = "\x1b[31mred"
    names = ("gen_ai.request.model", "inference.end.reason", "inference.failure.stage", "inference.request.workload")
    run_of(tmp_path, Load(requests=100, failed=0.5, attributes=tuple((name, evil) for name in names)))
    ran = cli("report", "run.json", "--group-by", "model")
    assert "\x1b" not in ran.out
    assert ran.out.count("[31mred") > 20


def printed(width: int, show: Callable[..., Any], *arguments: Any) -> list[str]:
    """Return what is printed on a terminal of some width."""
    out = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None, highlight=False)
    show(out, *arguments)
    assert isinstance(out.file, io.StringIO)
    return [text.rstrip() for text in out.file.getvalue().splitlines()]


def test_figures_are_whole_on_a_narrow_terminal() -> None:
    """No value stands apart from its unit in 80 columns, and no reason is cut in pieces."""
    workload = workload_of(Load(requests=300, cancelled=0.2), WorkloadSettings(group_by="model"))
    found = presented(workload, report_of(workload, ["run.json"]), Diagnosis(headline="", findings=()), 10)
    lines = printed(80, show_tables, found.tables)
    assert max(map(len, lines)) <= 80
    assert [text for text in lines if text.strip() in {"ms", "s", "µs"}] == []
    assert sum("client_disconnected" in text for text in lines) >= 9
    group = next(index for index, text in enumerate(lines) if text.startswith("smollm2") and " / " in text)
    assert lines[group].count(" / ") == 3
    assert lines[group + 1].count("(") == 3


def test_a_finding_keeps_its_indent_where_its_lines_are_broken() -> None:
    """What follows a broken line stands below its beginning."""
    finding = Finding(
        cause="queue", symptom="word " * 30, look_at="place " * 30, evidence=("line " * 30,), confidence="moderate"
    )
    lines = printed(80, show_diagnosis, Diagnosis(headline="queue", findings=(finding,)))
    inside = [text.strip("│ ") and text.strip("│").rstrip() for text in lines[3:-1]]
    told = [text for text in inside if text]
    assert all(text.startswith((" moderate  word", " " * 11)) for text in told)
    assert [text[11:13] for text in told if "line" in text] == ["· ", "  ", "  "]
