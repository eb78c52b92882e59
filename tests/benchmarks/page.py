"""The page with plots beside the table: how far each row is from its limit, and what the contenders cost."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any

from tests.benchmarks.measure import Budget

COLOURS = {"met": "#2a7f62", "MISSED": "#b3261e", "untold": "#8a8a8a"}
HEAD = """<!doctype html><html lang="en"><meta charset="utf-8"><title>otel-lifecycle: what it costs</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.2rem .6rem;border-bottom:1px solid #ddd}
td.number{text-align:right;font-variant-numeric:tabular-nums}svg{max-width:100%;height:auto}</style>"""


def write(path: Path, budgets: Sequence[Budget], versions: str) -> Path:
    """Write the page; return where it is."""
    path.parent.mkdir(exist_ok=True)
    plots = [distances(budgets), *(costs(budget) for budget in budgets if budget.costs)]
    body = f"<h1>What otel-lifecycle costs</h1><p>{escape(versions)}</p>{table(budgets)}{''.join(plots)}"
    path.write_text(f"{HEAD}<body>{body}</body></html>", "utf-8")
    return path


def table(budgets: Sequence[Budget]) -> str:
    """Return the rows as they are printed."""
    cells = "".join(
        f"<tr><td>{escape(budget.name)}</td><td class=number>{figure_of(budget)}</td>"
        f'<td class=number>{budget.limit:g}</td><td style="color:{COLOURS[budget.verdict]}">{budget.verdict}</td></tr>'
        for budget in budgets
    )
    return f"<table><tr><th>row<th>figure<th>limit<th>verdict</tr>{cells}</table>"


def figure_of(budget: Budget) -> str:
    """Return the figure with the interval it lies in; the doubt where there is none."""
    if budget.interval is None:
        return escape(str(budget.doubt))
    return f"{budget.interval.figure:.3g} ({budget.interval.low:.3g} to {budget.interval.high:.3g})"


def distances(budgets: Sequence[Budget]) -> str:
    """Plot each row as a part of its limit, with its interval."""
    told = [(budget, budget.interval) for budget in reversed(budgets) if budget.interval is not None]
    if not told:
        return ""
    figure, axes = canvas(0.32 * len(told) + 1.2)
    for row, (budget, interval) in enumerate(told):
        part = [value / budget.limit for value in (interval.low, interval.figure, interval.high)]
        colour = COLOURS[budget.verdict]
        axes.plot([part[0], part[2]], [row, row], color=colour, linewidth=3, solid_capstyle="round")
        axes.plot(part[1], row, "o", color=colour)
    axes.axvline(1, color="#444", linestyle="--", linewidth=1)
    axes.set_yticks(range(len(told)), [budget.name for budget, _ in told])
    axes.set_xlim(left=0)
    axes.set_xlabel("part of the limit (dashed: the limit); the bar is the 95 % interval of the median")
    return f"<h2>How far each row is from its limit</h2>{svg(figure)}"


def costs(budget: Budget) -> str:
    """Plot what the contenders of a row cost."""
    names = list(budget.costs)[::-1]
    figure, axes = canvas(0.36 * len(names) + 1)
    bars = axes.barh(names, [budget.costs[name] for name in names], color="#4c72b0")
    axes.bar_label(bars, fmt="%.4g", padding=3)
    axes.margins(x=0.15)
    axes.set_xlabel("CPU µs")
    return f"<h2>{escape(budget.name)}</h2>{svg(figure)}"


def canvas(height: float) -> tuple[Any, Any]:
    """Return a figure without a window, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, height), layout="constrained")
    return figure, figure.subplots()


def svg(figure: Any) -> str:
    """Return a figure as SVG for the inside of a page."""
    text = StringIO()
    figure.savefig(text, format="svg")
    return "<svg" + text.getvalue().partition("<svg")[2]
