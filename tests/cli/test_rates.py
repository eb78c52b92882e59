"""Goodput, timeouts and the other rates: found where they change, and not told apart where they do not."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from otel_lifecycle._analysis.comparison import rates
from otel_lifecycle._analysis.comparison.sides import Side, run_of
from otel_lifecycle._analysis.settings import WorkloadSettings
from otel_lifecycle._cli.commands.report import read_workload
from otel_lifecycle._core.slo import WHOLE, Slo
from tests.cli import verdicts_of_equal_runs as simulation
from tests.cli.generator import Load, simulate, write
from tests.cli.test_evidence import gathered, request_span


@pytest.mark.slow
@pytest.mark.parametrize("patience", [float("inf"), 2.0])
def test_goodput_and_timeouts_of_equal_busy_runs_are_not_told_apart(tmp_path: Path, patience: float) -> None:
    """Requests in one queue share their fate: as so many single ones nearly every pair would be told apart."""
    case = simulation.Case(name="", load=Load(requests=800, rate=3.0), patience=patience)
    seeds = count(1000)
    told = [
        simulation.told_apart(simulation.side(case, tmp_path, seeds, 4), simulation.side(case, tmp_path, seeds, 4))
        for _ in range(5)
    ]
    assert [found & simulation.RATED for found in told] == [set()] * 5


@pytest.mark.long
def test_a_server_that_times_out_is_found(tmp_path: Path) -> None:
    """Half the slots, and most requests wait for too long."""
    case = simulation.Case(name="", load=Load(requests=600, rate=2.0), patience=2.0)
    seeds = count(1)
    assert simulation.told_apart(
        simulation.side(case, tmp_path, seeds, 4), simulation.side(case, tmp_path, seeds, 2)
    ) >= {"goodput", "timeout_rate"}


@pytest.mark.long
def test_of_a_sample_the_rate_is_that_of_all(tmp_path: Path) -> None:
    """Where a tenth of the requests are held against each other, all of them are counted."""
    made = []
    for seed in (1, 2):
        with (tmp_path / "run.json").open("wb") as out:
            write(Load(requests=400, rate=2.2, seed=seed), out)
        workload = read_workload((str(tmp_path / "run.json"),), WorkloadSettings(slo=Slo(ttft=0.3)))
        made.append(Side(name="side", sources=(), runs=[run_of(workload, sample=40)]))
    one, other = made
    told = next(found for found in rates.rates(one, other, (), False) if found.metric == "goodput")
    met, judged = one.runs[0].counts["goodput"]
    assert (told.baseline, told.baseline_count) == (met / 400, judged)
    assert judged == 400
    assert told.low is not None
    assert told.high is not None
    assert (told.low + told.high) / 2 == pytest.approx(told.difference, abs=0.02)


@pytest.mark.parametrize("slo", [Slo(ttft=0.5), Slo(tpot=0.05), Slo(e2e=3.0), Slo(ttft=0.5, tpot=0.05, e2e=3.0)])
def test_rows_are_judged_as_requests_are(slo: Slo) -> None:
    """What is unknown is not judged, and what did not complete has not met its SLO."""
    known = [{"ttft": 0.4, "tpot": 0.04, "e2e": 2.0}, {"ttft": 0.5, "tpot": 0.06, "e2e": 3.5}, {"e2e": 3.0}, {}]
    cases = [(seconds, completed) for seconds in known for completed in (True, False)]
    load = Load(requests=len(cases), cancelled=0, failed=0)
    spans = [
        request_span(
            request,
            load,
            **{f"inference.{name}": seconds.get(name) for name in ("ttft", "tpot", "e2e")},
            **{"inference.outcome": "completed" if completed else "failed"},
        )
        for request, (seconds, completed) in zip(simulate(load), cases, strict=True)
    ]
    told = run_of(gathered(spans, WorkloadSettings(slo=slo))).columns["slo_met"]
    assert told.tolist() == [slo.judge(seconds, completed=completed)[WHOLE] for seconds, completed in cases]


def test_columns_and_counts_mean_the_same(tmp_path: Path) -> None:
    """The columns of the requests add up to what is counted."""
    case = simulation.Case(name="", load=Load(requests=400, rate=4.0), patience=1.0)
    run = simulation.run(case, tmp_path, 1, 4)
    assert min(run.columns[outcome].sum() for outcome in ("timed_out", "failed")) > 0
    for name in ("success_rate", "timeout_rate", "failure_rate", "rejection_rate"):
        _, column = rates.RATES[name]
        assert run.counts[name] == (run.columns[column].sum(), run.columns["terminated"].sum())
