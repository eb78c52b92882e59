"""A sweep as sections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import PurePath

from markupsafe import Markup

from otel_lifecycle._analysis.comparison.sweep import SweepRun, plain, throughput_of
from otel_lifecycle._cli.render.sections import JudgedCase, Presentation, Section, Table, table_of, written
from otel_lifecycle._draw.bars import legend
from otel_lifecycle._draw.plot import Plot
from otel_lifecycle._draw.scale import linear, short_seconds, whole
from otel_lifecycle._table.text import NOTHING, number, plural, seconds, share, shorten, text

FRONT = "on the front"


def presented(runs: Sequence[SweepRun]) -> Presentation:
    """Return a sweep ready for any form; it tests nothing, so no case fails."""
    headline, runs_table = title_of(runs), table(runs)
    return Presentation(
        command="compare",
        headline=headline,
        plain=plain(runs),
        sections=[
            Section(title="Throughput against latency", charts=lambda: [scatter(runs)]),
            Section(title=runs_table.title, tables=[runs_table]),
        ],
        cases=[JudgedCase(name=run.source, told=_told(run)) for run in runs],
        title=f"Comparison of {len(runs)} runs",
        subtitle=", ".join(run.source for run in runs),
        opening=headline,
    )


def _told(run: SweepRun) -> str:
    return ", ".join(f"{key} {value}" for key, value in asdict(run).items())


def table(runs: Sequence[SweepRun]) -> Table:
    """Return a row for each run, in the order of the command line."""
    return table_of(
        "Runs",
        map(asdict, runs),
        written(lambda source: shorten(text(source), 40), "run:source"),
        written(lambda front: FRONT if front else NOTHING, "front"),
        written(number, "requests"),
        written(share, "success:success_rate"),
        written(number, "req/s:request_throughput", "tok/s:token_throughput"),
        written(seconds, "TTFT p95:ttft_p95", "TPOT p95:tpot_p95", "E2E p95:e2e_completed_p95"),
        left=2,
        note=f"{FRONT}: no other run has at least its {_words(runs)} at no more than its E2E p95, which is of completed"
        " requests; nothing is tested here: compare two runs for that",
    )


def _words(runs: Sequence[SweepRun]) -> str:
    return throughput_of(runs).replace("_", " ")


def title_of(runs: Sequence[SweepRun]) -> str:
    """Return what the sweep shows, in one line."""
    names = [shorten(text(run.source)) for run in runs if run.front]
    return f"{plural(len(runs), 'run')}, on the front: {', '.join(names) or NOTHING}"


def scatter(runs: Sequence[SweepRun]) -> Markup:
    """Return throughput against latency, a dot for each run, with a line along the front."""
    name = throughput_of(runs)
    placed = [
        (getattr(run, name), run.e2e_completed_p95, run)
        for run in runs
        if getattr(run, name) is not None and run.e2e_completed_p95 is not None
    ]
    if not placed:
        return Markup("")
    x = linear(0, max(at for at, _, _ in placed) * 1.05, whole)
    plot = Plot(x, linear(0, max(latency for _, latency, _ in placed) * 1.1, short_seconds, 4), height=220)
    plot.curve(sorted((at, latency) for at, latency, run in placed if run.front), "accent")
    for at, latency, run in placed:
        tip = f"{PurePath(run.source).name}\n{number(at)} per second, E2E p95 {seconds(latency)}"
        plot.dot(at, latency, "accent" if run.front else "muted", tip, size=4)
    label = f"{_words(runs)} against E2E p95, {plural(len(placed), 'run')}"
    return legend([("accent", FRONT), ("muted", "beaten by another run")]) + plot.markup(
        label, f"{label}; up is slower"
    )
