"""Public cases of what a report says and how a trace is drawn (C105 to C108)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.generator import encode, line, simulate, spans_of
from tests.cli.live import serve, server
from tests.cli.running import Ran
from tests.cli.test_public_cases import LOAD, spans


def batch_of(starts: list[float], seconds: float) -> bytes:
    """Return requests that arrive at these times and last so long each, as a line."""
    with server() as process:
        for start in starts:
            serve(process, (0.1 * seconds, 0.2 * seconds, 0.3 * seconds), (), ("complete", seconds), start=start)
        return process.json_line()


@pytest.mark.long
@pytest.mark.parametrize(
    ("starts", "seconds", "mean", "peak"),
    [
        ([0.0] * 100, 0.004, 100.0, 100),
        ([0.0], 0.3, 1.0, 1),
        ([0.0, 5.0], 5.0, 1.0, 1),
        ([0.0, 0.0, 9.0], 1.0, 0.3, 2),
    ],
)
def test_c105_in_flight_is_exact(
    starts: list[float], seconds: float, mean: float, peak: int, cli: Callable[..., Ran], tmp_path: Path
) -> None:
    """A hundred at once are a hundred, however short; one request has a peak of one."""
    (tmp_path / "run.json").write_bytes(batch_of(starts, seconds))
    output = cli("report", "run.json", "--json").json["output"]
    assert output["in_flight_mean"] == pytest.approx(mean, rel=1e-3)
    assert output["in_flight_peak"] == peak


@pytest.mark.long
def test_c105_clumps_are_no_closed_loop(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """Fifty at once, again and again when all of them have gone."""
    (tmp_path / "run.json").write_bytes(batch_of([10.0 * wave for wave in range(12) for _ in range(50)], 0.5))
    arrivals = cli("report", "run.json", "--json").json["conditions"]["arrivals"]
    assert arrivals["dispersion"] > 20
    assert arrivals["pattern"] == "bursty"


def test_c106_a_report_of_no_request_is_code_2(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """As check and compare have it: for an empty file, and for one that holds other spans only."""
    (tmp_path / "empty.json").touch()
    other = {**spans()[0], "attributes": encode({"http.route": "/"}), "events": []}
    (tmp_path / "other.json").write_bytes(line([other]))
    for name in ("empty.json", "other.json"):
        for command in ("report", "check"):
            assert cli(command, name).code == 2
        ran = cli("report", name, "--json")
        assert (ran.code, json.loads(ran.out)["requests"]["total"]) == (2, 0)
        assert f"nothing to report: no request in {name}" in ran.err


def test_c106_a_page_is_written_beside_what_is_printed(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """As the help says."""
    (tmp_path / "run.json").write_bytes(line(spans()))
    ran = cli("report", "run.json", "--html", "page.html")
    assert ran.out == cli("report", "run.json").out
    assert (tmp_path / "page.html").exists()


def called() -> bytes:
    """Return a request below the span of an HTTP server that began 0.5 s before it, as a line."""
    made = json.loads(line(spans_of(next(simulate(LOAD)), LOAD)))
    scope = made["resourceSpans"][0]["scopeSpans"][0]["spans"]
    start, end = int(scope[0]["startTimeUnixNano"]), int(scope[0]["endTimeUnixNano"])
    http = {
        "traceId": scope[0]["traceId"],
        "spanId": "ab" * 8,
        "name": "POST /chat",
        "startTimeUnixNano": str(start - 500_000_000),
        "endTimeUnixNano": str(end + 1_000_000),
        "attributes": encode({"http.route": "/chat"}),
    }
    scope[0]["parentSpanId"] = "ab" * 8
    scope.append(http)
    return json.dumps(made).encode()


def test_c107_the_callers_span_stands_above_the_request(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """The time in it before the arrival is said."""
    (tmp_path / "run.json").write_bytes(called())
    told = cli("view", "run.json", "--json").json
    assert [(bar["name"], bar["depth"]) for bar in told["waterfall"]][:3] == [
        ("POST /chat", 0),
        ("chat smollm2", 1),
        ("queue", 2),
    ]
    assert (told["caller"]["name"], told["caller"]["before"]) == ("POST /chat", pytest.approx(0.5))
    out = cli("view", "run.json").out
    assert "before arrival" in next(row for row in out.splitlines() if "500 ms" in row)


def test_c107_packed_and_long_values_are_shown_as_people_read_them(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """No base64 and no sixteen digits on the page."""
    with server(token_times=True) as process:
        serve(process, (0.1, 0.2, 0.3), [0.31, 0.32, 0.33], ("complete", 1 / 3))
        (tmp_path / "run.json").write_bytes(process.json_line())
    cli("view", "run.json", "--html", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "4 tokens with a time" in page
    assert "AAAAAB" not in page
    assert "0.333333" in page
    assert "0.33333333" not in page


def test_the_terminal_draws_the_token_timeline(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """As the help of view promises: tokens on the scale of the bars, and a stall between them."""
    with server(token_times=True) as process:
        serve(process, (0.1, 0.2, 1.0), [1.1, 1.2, 1.3, 1.4, 1.5, 2.5, 2.6, 2.7], ("complete", 2.8))
        (tmp_path / "run.json").write_bytes(process.json_line())
    line_of = next(row for row in cli("view", "run.json").out.splitlines() if row.startswith("tokens"))
    assert sum(character in "▁▂▃▄▅▆▇" for character in line_of) == 9
    assert "····" in line_of


def test_spans_of_other_libraries_are_no_alarm(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """They stand beside what was not read, and so do metrics of others."""
    other = {**spans()[0], "spanId": "cd" * 8, "attributes": encode({"http.route": "/"}), "events": []}
    (tmp_path / "run.json").write_bytes(line([*spans(), other]))
    report = cli("report", "run.json", "--json").json
    assert (report["trouble"], [one["kind"] for one in report["beside"]]) == ([], ["other_spans"])
    assert "What was not read" not in cli("report", "run.json").out


def test_c108_the_headline_tiles_show_what_changed() -> None:
    """Before the usual figures, of which none has."""
    from otel_lifecycle._analysis.comparison.document import Result
    from otel_lifecycle._analysis.comparison.figure import Comparison
    from otel_lifecycle._analysis.comparison.sides import Side
    from otel_lifecycle._cli.render.comparison import headline_figures

    def figure(metric: str, verdict: Any = "no evidence") -> Comparison:
        return Comparison(
            metric=metric, baseline=1.0, candidate=2.0, baseline_count=9, candidate_count=9, verdict=verdict
        )

    side = Side(name="x", sources=("x",), runs=[])
    figures = [
        figure("ttft.p95"),
        figure("tpot.p50"),
        figure("e2e.p95"),
        figure("queue_wait.mean", "worse"),
        figure("prefill.mean", "worse"),
        figure("goodput", "better"),
    ]
    result = Result(
        baseline=side, candidate=side, differences=[], varied=[], figures=figures, rulings=[], min_effect=0.1
    )
    shown = [one.metric for one in headline_figures(result)]
    assert shown == ["queue_wait.mean", "prefill.mean", "goodput", "ttft.p95"]
