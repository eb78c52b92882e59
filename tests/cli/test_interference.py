"""What neighbours did to a request: summed up in a report, diagnosed, and compared."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.generator import Load, encode, line, simulate, spans_of
from tests.cli.running import Ran

TOLD: dict[str, Any] = {
    "inference.queue.beside.preprocessing": 0.0,
    "inference.queue.beside.prefill": 0.25,
    "inference.queue.beside.decode": 0.5,
    "inference.queue.idle": 0.25,
    "inference.queue_wait": 1.0,
    "inference.stall.count": 2,
    "inference.stall.time": 0.4,
    "inference.stall.max": 0.3,
    "inference.stall.prefill": 0.3,
    "inference.stall.preemption": 0.0,
    "inference.stall.unexplained": 0.1,
    "inference.decode_time": 1.0,
    "inference.company.prefill": 1.5,
    "inference.company.decode": 2.5,
    "inference.bottleneck.cause": "prefill",
}


def run_with(path: Path, number: int = 40, **changes: Any) -> Path:
    """Write requests that all tell the same of their neighbours, and blame one of them."""
    load = Load(requests=number, cancelled=0, failed=0)
    made = [spans_of(one, load)[0] for one in simulate(load)]
    told = {**TOLD, **{key.replace("__", "."): value for key, value in changes.items()}}
    for span in made[1:]:
        kept = [item for item in span["attributes"] if item["key"] not in told]
        span["attributes"] = [*kept, *encode(told)]
        link = encode({"inference.link.reason": "stall", "inference.link.time": 0.3, "inference.request.id": "r0"})
        span["links"] = [{"traceId": made[0]["traceId"], "spanId": made[0]["spanId"], "attributes": link}]
    path.write_bytes(line(made))
    return path


def test_a_report_sums_up_waits_and_stalls_by_cause(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """With the number of requests behind each; one without a split adds nothing."""
    run_with(tmp_path / "run.json")
    told = cli("report", "run.json", "--json").json["interference"]
    assert told["queue"] == {
        "count": 39,
        "wait": pytest.approx(39.0),
        "preprocessing": 0.0,
        "prefill": pytest.approx(9.75),
        "decode": pytest.approx(19.5),
        "idle": pytest.approx(9.75),
    }
    assert told["stalls"] == {
        "count": 39,
        "stalled_requests": 39,
        "stalls": 78,
        "time": pytest.approx(15.6),
        "prefill": pytest.approx(11.7),
        "preemption": 0.0,
        "unexplained": pytest.approx(3.9),
        "decode_time": pytest.approx(39.0),
        "longest": 0.3,
        "prefill_share_of_decode": pytest.approx(0.3),
    }
    assert told["company"]["decode"] == {"count": 39, "mean": pytest.approx(2.5)}
    assert [(one["request"], one["requests"], one["time"]) for one in told["culprits"]] == [
        ("r0", 39, pytest.approx(11.7))
    ]


def test_the_terminal_has_the_section_and_what_to_do_next(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """Symptoms with the next place to look."""
    run_with(tmp_path / "run.json")
    ran = cli("report", "run.json")
    assert "stalled beside prefill of others" in ran.out
    assert "Requests that others waited for" in ran.out
    findings = {one["cause"]: one for one in cli("report", "run.json", "--json").json["diagnosis"]["findings"]}
    assert findings["stalls by prefill"]["confidence"] == "strong"
    assert "chunked prefill" in findings["stalls by prefill"]["look_at"]
    assert findings["unexplained stalls"]["confidence"] == "moderate"
    assert findings["admission"]["symptom"] == "requests wait while the engine is idle"


def test_without_such_attributes_there_is_no_section(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """Absent is absent."""
    load = Load(requests=30)
    (tmp_path / "run.json").write_bytes(line([spans_of(one, load)[0] for one in simulate(load)]))
    assert "Interference" not in cli("report", "run.json").out
    told = cli("report", "run.json", "--json").json["interference"]
    assert (told["queue"]["count"], told["stalls"]["prefill_share_of_decode"], told["culprits"]) == (0, None, [])


def test_compare_has_the_part_of_decode_lost_to_prefills(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """The ratio that decides about chunked prefill."""
    run_with(tmp_path / "a.json")
    run_with(tmp_path / "b.json", inference__stall__prefill=0.1)
    figures = {one["metric"]: one for one in cli("compare", "a.json", "b.json", "--json").json["metrics"]}
    told = figures["stall_share.mean"]
    assert (told["baseline"], told["candidate"]) == (pytest.approx(0.3), pytest.approx(0.1))
    out = cli("compare", "a.json", "b.json").out
    assert "30.0 %" in next(row for row in out.splitlines() if row.startswith("stall_share.mean"))


@pytest.mark.process
def test_a_report_imports_neither_scipy_nor_charts(tmp_path: Path) -> None:
    """They take longer to load than sixty requests to read."""
    run_with(tmp_path / "run.json", 60)
    heavy = ("scipy", "numpy", "jinja2", "rich.progress", "opentelemetry.sdk", "google.protobuf", "http.client")
    code = (
        "import sys; from otel_lifecycle._cli.main import run; code = run(['report', 'run.json']);"
        f"print(code, sorted({{*{heavy!r}}} & set(sys.modules)), file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "0 []\n")
