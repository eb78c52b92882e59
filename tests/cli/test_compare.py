"""A change is found, two equal runs are not told apart, and different workloads are not compared."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from otel_lifecycle._analysis.comparison.figure import Comparison
from otel_lifecycle._analysis.comparison.sides import Run, Side, in_turns
from otel_lifecycle._analysis.comparison.verdicts import judged, usual_effect
from tests.cli.generator import Load, write
from tests.cli.running import Ran

LOAD = Load(requests=400, rate=2.2, seed=11)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A baseline, an equal run, the same with twice the slots, and runs of other workloads."""
    folder = tmp_path_factory.mktemp("runs")
    loads = {
        "baseline": LOAD,
        "equal": replace(LOAD, seed=12),
        "slots": replace(LOAD, seed=13, slots=8),
        "same_prompts": replace(LOAD, slots=8),
        "longer": replace(LOAD, seed=14, input_tokens=1500.0),
        "other_model": replace(LOAD, seed=15, attributes=(("gen_ai.request.model", "other"),)),
        "faster_arrivals": replace(LOAD, seed=16, rate=4.0),
        "more_slots_said": replace(LOAD, seed=13, slots=8, attributes=(("inference.request.batch_size", 8),)),
    }
    clean = Load(requests=400, rate=2.2, cancelled=0.0, failed=0.0)
    loads |= {"clean": replace(clean, seed=17), "clean_too": replace(clean, seed=18), "few": replace(LOAD, requests=50)}
    for name, load in loads.items():
        with (folder / f"{name}.json").open("wb") as out:
            write(load, out)
    return folder


@pytest.fixture
def runs(files: Path, cli: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Their folder, in which the commands run."""
    monkeypatch.chdir(files)
    return files


def verdicts(ran: Ran) -> dict[str, str]:
    """Return the verdict on every metric."""
    return {metric["metric"]: metric["verdict"] for metric in ran.json["metrics"]}


def test_two_equal_runs_show_nothing(runs: Path, cli: Callable[..., Ran]) -> None:
    """No metric is better, and none is worse; each comes with its samples and its interval."""
    ran = cli("compare", "baseline.json", "equal.json", "--json")
    assert set(verdicts(ran).values()) == {"no evidence"}
    assert ran.json["headline"] == "no evidence of a difference"
    ttft = next(metric for metric in ran.json["metrics"] if metric["metric"] == "ttft.p50")
    assert (ttft["baseline_count"], ttft["candidate_count"]) == (400, 400)
    assert ttft["low"] < 0 < ttft["high"]
    assert ttft["test"] == "permutation of time blocks (share beyond the common quantile)"


def test_a_run_against_itself_shows_nothing(runs: Path, cli: Callable[..., Ran]) -> None:
    """Every difference is zero."""
    ran = cli("compare", "baseline.json", "baseline.json", "--json")
    assert {metric["difference"] for metric in ran.json["metrics"]} == {0}
    assert set(verdicts(ran).values()) == {"no evidence"}


@pytest.mark.long
def test_a_change_is_found_where_it_is(runs: Path, cli: Callable[..., Ran]) -> None:
    """Twice the slots shorten the wait, and not the tokens."""
    told = verdicts(cli("compare", "baseline.json", "slots.json", "--json"))
    assert (told["ttft.p50"], told["queue_wait.mean"], told["e2e.p50"]) == ("better",) * 3
    assert (told["tpot.p50"], told["prefill.mean"], told["success_rate"]) == ("no evidence",) * 3
    back = verdicts(cli("compare", "slots.json", "baseline.json", "--json"))
    assert (back["ttft.p50"], back["queue_wait.mean"]) == ("worse", "worse")


def test_the_same_prompts_in_the_same_order_are_compared_in_pairs(runs: Path, cli: Callable[..., Ran]) -> None:
    """What the prompts have in common is not noise then."""
    ran = cli("compare", "baseline.json", "same_prompts.json", "--json")
    ttft = next(metric for metric in ran.json["metrics"] if metric["metric"] == "ttft.p50")
    assert (ttft["verdict"], ttft["test"]) == (
        "better",
        "permutation of paired time blocks (share beyond the common quantile)",
    )


@pytest.mark.parametrize(
    ("candidate", "condition"),
    [
        ("longer", "input tokens"),
        ("other_model", "model"),
        ("faster_arrivals", "rate of arrivals"),
        ("more_slots_said", "batch size"),
    ],
)
def test_different_conditions_are_refused_by_name(
    runs: Path, cli: Callable[..., Ran], candidate: str, condition: str
) -> None:
    """Exit code 2; what each side was is said."""
    ran = cli("compare", "baseline.json", f"{candidate}.json")
    assert (ran.code, ran.out) == (2, "")
    assert "not two runs of one workload" in ran.err
    assert [line.split(":")[0].strip() for line in ran.err.splitlines()[1:-1]] == [condition]


@pytest.mark.long
def test_force_compares_and_warns_loudly(runs: Path, cli: Callable[..., Ran]) -> None:
    """On standard error, and in the result."""
    ran = cli("compare", "baseline.json", "longer.json", "--force", "--json")
    assert ran.err.startswith("WARNING: compared by force, though these conditions differ: input tokens")
    assert (ran.json["comparable"], ran.json["forced"]) == (False, True)
    assert verdicts(ran)["prefill.mean"] == "worse"


@pytest.mark.parametrize("name", ["batch size", "batch_size"])
def test_the_change_under_test_is_no_refusal(runs: Path, cli: Callable[..., Ran], name: str) -> None:
    """A condition that is meant to differ is named, as a table writes it or as --group-by does, and shown."""
    ran = cli("compare", "baseline.json", "more_slots_said.json", "--vary", name, "--json")
    assert ran.json["comparable"]
    assert ran.json["varied"] == [{"condition": "batch size", "baseline": "not stated", "candidate": "8"}]
    assert verdicts(ran)["ttft.p50"] == "better"
    assert cli("compare", "baseline.json", "equal.json", "--vary", "weather").code == 2


def told_by(terminal: int) -> str:
    """Return what appeared on a terminal; nothing at its end.  On a slow machine one read does not get all of it."""
    try:
        return os.read(terminal, 65536).decode()
    except OSError:  # How Linux tells the end of a terminal.
        return ""


@pytest.mark.process
def test_the_warning_has_no_colour_where_none_is_wanted(runs: Path) -> None:
    """NO_COLOR holds on a terminal, too."""
    command = "import sys; from otel_lifecycle._cli.main import run; sys.exit(run())"
    arguments = [sys.executable, "-c", command, "compare", "few.json", "longer.json", "--force", "--json"]
    mine, theirs = pty.openpty()
    environment = {**os.environ, "NO_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "200"}
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=theirs, env=environment)
    os.close(theirs)
    said = "".join(iter(lambda: told_by(mine), ""))
    os.close(mine)
    assert process.wait() == 0
    assert "WARNING: compared by force" in said
    assert not re.search(r"\x1b\[[0-9;]*3\d", said.partition("WARNING")[0].rpartition("\n")[2])


@pytest.mark.parametrize(
    ("candidate", "gate", "code"),
    [
        ("slots", "ttft.p95=+5%", 0),
        ("slots", "ttft.p50=-5%", 1),
        pytest.param("slots", "ttft.p50=-99%", 0, marks=pytest.mark.slow),
        pytest.param("slots", "e2e.mean=-100ms", 1, marks=pytest.mark.slow),
        pytest.param("equal", "ttft.p95=+5%", 0, marks=pytest.mark.slow),
        ("equal", "success_rate=-1pt", 0),
    ],
)
def test_a_gate_decides_the_exit_code(
    runs: Path, cli: Callable[..., Ran], candidate: str, gate: str, code: int
) -> None:
    """1 beyond the limit, 0 within it or within noise."""
    assert cli("compare", "baseline.json", f"{candidate}.json", "--fail-on", gate).code == code


@pytest.mark.long
def test_a_gate_can_go_by_the_bare_estimate(runs: Path, cli: Callable[..., Ran]) -> None:
    """Noise fails it then, too; by evidence it passes, and says why."""
    change = cli("compare", "equal.json", "baseline.json", "--fail-on", "ttft.p95=+1s", "--json").json["gates"][0][
        "change"
    ]
    limit = f"ttft.p95={'+' if change > 0 else '-'}0.001%"
    arguments = ("compare", "equal.json", "baseline.json", "--fail-on", limit, "--json")
    strict, lenient = cli(*arguments, "--gate", "estimate"), cli(*arguments)
    assert (strict.code, lenient.code) == (1, 0)
    assert lenient.json["gates"][0]["reason"] == "beyond the limit, but no verdict: within noise"


@pytest.mark.long
@pytest.mark.parametrize(
    ("both", "gate", "reason"),
    [
        (("baseline", "slots"), "request_throughput=+1%", "a run gives one figure: 3 runs a side needed"),
        (("few", "few"), "ttft.p95=-1%", "100 samples needed, 50 there"),
    ],
)
def test_a_gate_that_needs_more_is_code_2(
    runs: Path, cli: Callable[..., Ran], both: tuple[str, str], gate: str, reason: str
) -> None:
    """With what it needs, and what to do without; the tables are there all the same."""
    arguments = ("compare", *(f"{name}.json" for name in both), "--fail-on", gate)
    ran = cli(*arguments)
    assert ran.code == 2
    assert f"--fail-on {gate} cannot be judged: {reason}\n--gate estimate goes by" in ran.err
    assert f"NOT JUDGED ({reason})" in ran.out
    assert cli(*arguments, "--gate", "estimate").code in {0, 1}


def test_a_failed_gate_is_code_1_beside_one_that_cannot_be_judged(runs: Path, cli: Callable[..., Ran]) -> None:
    """Both are said."""
    gates = ("--fail-on", "ttft.p50=-5%", "--fail-on", "request_throughput=-5%")
    ran = cli("compare", "baseline.json", "slots.json", *gates)
    assert ran.code == 1
    assert ran.err.startswith("--fail-on request_throughput=-5% cannot be judged: ")


@pytest.mark.long
def test_a_gate_on_what_never_happened_is_judged(runs: Path, cli: Callable[..., Ran]) -> None:
    """No failure in 400 requests of either side: 0, give or take the 1 point of which 400 tell nothing."""
    ran = cli("compare", "clean.json", "clean_too.json", "--fail-on", "failure_rate=+1pt", "--json")
    assert ran.code == 0
    told = next(metric for metric in ran.json["metrics"] if metric["metric"] == "failure_rate")
    assert (told["baseline"], told["candidate"], told["baseline_count"]) == (0, 0, 400)
    assert (told["low"], told["high"]) == pytest.approx((-0.0095, 0.0095), abs=1e-4)


def test_gates_have_units(runs: Path, cli: Callable[..., Ran]) -> None:
    """Those of what they limit."""
    limits = ("ttft.p50=+900ms", "success_rate=-90pt", "request_throughput=-9", "ttft.p50=+900%")
    gates = (part for limit in limits for part in ("--fail-on", limit))
    out = cli("compare", "slots.json", "baseline.json", *gates, "--gate", "estimate").out
    shown = [line.split("passed")[1].strip() for line in out.splitlines() if "passed" in line]
    forms = (r"[+-][\d.]+ ms", r"[+-][\d.]+ pt", r"[+-][\d.]+ requests/s", r"[+-][\d.]+%")
    assert [bool(re.fullmatch(form, told)) for form, told in zip(forms, shown, strict=True)] == [True] * 4, shown


@pytest.mark.long
@pytest.mark.parametrize(
    ("gate", "reason"),
    [
        ("speed=+5%", "no metric 'speed'; the metrics are ttft.mean, ttft.p50"),
        ("ttft.p95", "it is written METRIC=+5%"),
        ("ttft.p95=5%", "it is written METRIC=+5%"),
        ("goodput=-1pt", "both sides have no samples of goodput"),
    ],
)
def test_a_gate_that_cannot_be_judged_is_code_2(runs: Path, cli: Callable[..., Ran], gate: str, reason: str) -> None:
    """An unknown metric, a limit that is none, a metric without samples: with the reason."""
    ran = cli("compare", "baseline.json", "equal.json", "--fail-on", gate)
    assert ran.code == 2
    assert reason in ran.err


def test_a_side_without_requests_is_code_2(runs: Path, cli: Callable[..., Ran]) -> None:
    """An empty file compares with nothing."""
    (runs / "empty.json").touch()
    ran = cli("compare", "baseline.json", "empty.json")
    assert (ran.code, ran.err) == (2, "otel-lifecycle: the candidate has no live request in empty.json\n")


def many(folder: Path, name: str, **changes: Any) -> list[str]:
    """Write three runs of a side."""
    paths = []
    for seed in range(3):
        paths.append(f"{name}-{seed}.json")
        with (folder / paths[-1]).open("wb") as out:
            write(replace(LOAD, requests=200, seed=100 + seed + 10 * len(name), **changes), out)
    return paths


@pytest.mark.long
def test_several_runs_are_compared_as_runs(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """A figure a run, by Welch's t-test; throughput has a verdict then, too."""
    before, after = many(tmp_path, "before"), many(tmp_path, "after", slots=8)
    options = [f"--baseline-run={path}" for path in before[1:]] + [f"--candidate-run={path}" for path in after[1:]]
    ran = cli("compare", before[0], after[0], *options, "--json")
    by_name = {metric["metric"]: metric for metric in ran.json["metrics"]}
    assert (ran.json["baseline"]["runs"], ran.json["candidate"]["runs"]) == (3, 3)
    assert by_name["ttft.p50"]["test"] == "Welch's t-test of runs"
    assert by_name["request_throughput"]["p"] is not None
    assert by_name["ttft.p50"]["difference"] < 0


def test_one_run_gives_no_verdict_on_throughput(runs: Path, cli: Callable[..., Ran]) -> None:
    """One figure against one figure proves nothing, and that is said."""
    ran = cli("compare", "baseline.json", "slots.json", "--json")
    told = next(metric for metric in ran.json["metrics"] if metric["metric"] == "request_throughput")
    assert (told["verdict"], told["reason"]) == ("no evidence", "a run gives one figure: 3 runs a side needed")


def test_the_terminal_names_better_and_worse(runs: Path, cli: Callable[..., Ran]) -> None:
    """The last line is the verdict."""
    ran = cli("compare", "baseline.json", "slots.json")
    assert ran.code == 0
    assert ran.out.splitlines()[-1].startswith("better: ttft.p50")
    assert "e2e: of completed requests" in ran.out


def test_a_narrow_terminal_keeps_samples_and_reasons(
    runs: Path, cli: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 80 columns a figure has its samples beside it, and its verdict the reason and p."""
    for name, setting in (("FORCE_COLOR", "1"), ("NO_COLOR", "1"), ("COLUMNS", "80")):
        monkeypatch.setenv(name, setting)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", cli("compare", "baseline.json", "equal.json").out).splitlines()
    assert max(map(len, lines)) <= 80
    figures, told = [line.split() for line in lines if line.startswith("tpot.p50")]
    assert figures[-3:] == ["400", "/", "400"]
    assert told[1:5] == ["no", "evidence", "within", "noise"]
    assert re.fullmatch(r"[01]\.\d{3}", told[-1])


def test_the_page_has_the_verdict_wherever_it_has_the_change(runs: Path, cli: Callable[..., Ran]) -> None:
    """In the tiles, and in the table, where the words stand in columns that are broken rather than cut off."""
    cli("compare", "baseline.json", "equal.json", "--html", "page.html")
    page = Path("page.html").read_text()
    tiles = re.findall(r'<div class="tile"><b>(.*?)</b>', page)
    assert len(tiles) == 4
    assert all(tile.endswith(", no evidence") for tile in tiles)
    assert re.search(r'<td class="left [^"]*">within noise</td>', page)


@pytest.mark.parametrize(
    ("metric", "change", "runs", "reason"),
    [
        ("ttft.p50", 0.07, 1, "sure, but less than 10%"),
        ("ttft.p50", 0.07, 3, ""),
        ("ttft.p50", 0.12, 1, ""),
        ("preprocessing.mean", 0.5, 3, "sure, but less than 1% of a whole request"),
        ("queue_wait.mean", 30.0, 3, ""),
    ],
)
def test_a_small_change_gets_no_verdict_however_sure(metric: str, change: float, runs: int, reason: str) -> None:
    """One run a side tells less than three do, and a stage that is nearly nothing of a request is not worth a word."""
    figure = 0.1 if metric == "ttft.p50" else 0.001
    found = Comparison(
        metric=metric,
        baseline=figure,
        candidate=figure * (1 + change),
        baseline_count=1000,
        candidate_count=1000,
        low=figure * change * 0.9,
        high=figure * change * 1.1,
        p=1e-6,
        p_corrected=1e-6,
    )
    sides = (Side(name=name, sources=(), runs=[Run()] * runs) for name in ("baseline", "candidate"))
    told = judged(found, usual_effect(*sides), whole=2.0)
    assert (told.verdict, told.reason) == ("no evidence" if reason else "worse", reason)


@pytest.mark.parametrize(
    ("order", "paired"), [("bcbcbc", True), ("cbbccb", True), ("bbbccc", False), ("bcbcb", False), ("bc", True)]
)
def test_runs_by_turns_are_neighbours_in_pairs(order: str, paired: bool) -> None:
    """Told from when they went on; their order on the command line does not matter."""
    runs: dict[str, list[Run]] = {"b": [], "c": []}
    for number, side in enumerate(order):
        runs[side].insert(0, Run(start=100.0 * number, end=100.0 * number + 50))
    made = [Side(name=name, sources=(), runs=runs[name]) for name in "bc"]
    found = in_turns(*made)
    assert (found is not None) == paired
    if found is not None:
        assert [side.runs for side in found] == [runs[name][::-1] for name in "bc"]


def test_runs_at_the_same_time_are_no_neighbours() -> None:
    """Two servers beside each other disturb each other."""
    made = [Side(name=name, sources=(), runs=[Run(start=0.0, end=50.0)]) for name in "bc"]
    assert in_turns(*made) is None
