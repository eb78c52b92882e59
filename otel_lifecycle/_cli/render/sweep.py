"""A sweep as a table, a drawing and a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from markupsafe import Markup

from otel_lifecycle._cli.comparison.sweep import SweepRun, throughput_of
from otel_lifecycle._cli.draw.bars import legend
from otel_lifecycle._cli.draw.plot import Plot
from otel_lifecycle._cli.draw.scale import linear, short_seconds, whole
from otel_lifecycle._cli.render.pages import Page, Section, render
from otel_lifecycle._cli.render.tables import Table
from otel_lifecycle._cli.text import NOTHING, number, plural, seconds, share, shorten, text

FRONT = "on the front"


def table(runs: Sequence[SweepRun]) -> Table:
    """Return a row for each run, in the order of the command line."""
    return Table(
        title="Runs",
        columns=("run", "front", "requests", "success", "req/s", "tok/s", "TTFT p95", "TPOT p95", "E2E p95"),
        rows=tuple(
            (
                shorten(text(run.source), 40),
                FRONT if run.front else NOTHING,
                number(run.requests),
                share(run.success_rate),
                number(run.request_throughput),
                number(run.token_throughput),
                seconds(run.ttft_p95),
                seconds(run.tpot_p95),
                seconds(run.e2e_completed_p95),
            )
            for run in runs
        ),
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


def page(runs: Sequence[SweepRun]) -> str:
    """Return the page of a sweep."""
    return render(
        Page(
            title=f"Comparison of {len(runs)} runs",
            subtitle=", ".join(run.source for run in runs),
            sections=[
                Section(title="Throughput against latency", plots=[scatter(runs)]),
                Section(title="Runs", tables=[table(runs)]),
            ],
        )
    )
