"""Goodput, timeouts and the other rates: found where they change, and not told apart where they do not."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import numpy as np
import pytest
from otel_lifecycle._cli.evidence import rows
from otel_lifecycle._cli.evidence.workload import WorkloadSettings

from otel_lifecycle._cli.commands.report import read_workload
from otel_lifecycle._cli.comparison import rates
from otel_lifecycle._cli.comparison.sides import Side
from otel_lifecycle._core.slo import WHOLE, Slo
from tests.cli import verdicts_of_equal_runs as simulation
from tests.cli.generator import Load, write


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


def test_a_server_that_times_out_is_found(tmp_path: Path) -> None:
    """Half the slots, and most requests wait for too long."""
    case = simulation.Case(name="", load=Load(requests=600, rate=2.0), patience=2.0)
    seeds = count(1)
    assert simulation.told_apart(
        simulation.side(case, tmp_path, seeds, 4), simulation.side(case, tmp_path, seeds, 2)
    ) >= {"goodput", "timeout_rate"}


def test_of_a_sample_the_rate_is_that_of_all(tmp_path: Path) -> None:
    """Where a tenth of the requests are held against each other, all of them are counted."""
    made = []
    for seed in (1, 2):
        with (tmp_path / "run.json").open("wb") as out:
            write(Load(requests=400, rate=2.2, seed=seed), out)
        run = read_workload((str(tmp_path / "run.json"),), WorkloadSettings(sample=40, slo=Slo(ttft=0.3)))
        made.append(Side(name="side", sources=(), runs=[run]))
    one, other = made
    told = next(found for found in rates.rates(one, other, (), False) if found.metric == "goodput")
    whole = one.runs[0].main
    assert (told.baseline, told.baseline_count) == (whole.slo_met / 400, 400)
    assert told.low is not None
    assert told.high is not None
    assert (told.low + told.high) / 2 == pytest.approx(told.difference, abs=0.02)


@pytest.mark.parametrize("slo", [Slo(ttft=0.5), Slo(tpot=0.05), Slo(e2e=3.0), Slo(ttft=0.5, tpot=0.05, e2e=3.0)])
def test_rows_are_judged_as_requests_are(slo: Slo) -> None:
    """What is unknown is not judged, and what did not complete has not met its SLO."""
    known = [{"ttft": 0.4, "tpot": 0.04, "e2e": 2.0}, {"ttft": 0.5, "tpot": 0.06, "e2e": 3.5}, {"e2e": 3.0}, {}]
    cases = [(seconds, completed) for seconds in known for completed in (True, False)]
    made = np.full((len(cases), len(rows.COLUMNS)), np.nan)
    for row, (seconds, completed) in zip(made, cases, strict=True):
        row[rows.INDEX["completed"]] = completed
        for name, value in seconds.items():
            row[rows.INDEX[name]] = value
    expected = [slo.judge(seconds, completed=completed)[WHOLE] for seconds, completed in cases]
    assert rates.judged(made, slo).tolist() == expected


def test_rows_and_counts_mean_the_same(tmp_path: Path) -> None:
    """The columns of the rows add up to what the evidence counts."""
    case = simulation.Case(name="", load=Load(requests=400, rate=4.0), patience=1.0)
    main = simulation.run(case, tmp_path, 1, 4).main
    assert min(main.outcomes[outcome] for outcome in ("timed_out", "failed")) > 0
    for name in ("success_rate", "timeout_rate", "failure_rate", "rejection_rate"):
        _, column, counted = rates.RATES[name]
        assert counted(main) == (main.sample.column(column).sum(), main.sample.column("terminated").sum())
