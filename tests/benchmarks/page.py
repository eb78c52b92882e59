"""The page with plots beside the table: how far each row is from its limit, and what the contenders cost."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from tests.benchmarks.measure import Budget

LABELS, WIDTH, ROW = 270, 620, 28
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
    if budget.interval is None or budget.doubt is not None:
        return escape(str(budget.doubt))
    return f"{budget.interval.figure:.3g} ({budget.interval.low:.3g} to {budget.interval.high:.3g})"


def distances(budgets: Sequence[Budget]) -> str:
    """Plot each row as a part of its limit, with its interval."""
    told = [(budget, budget.interval) for budget in budgets if budget.interval is not None and budget.doubt is None]
    widest = max((interval.high / budget.limit for budget, interval in told), default=0)
    scale = WIDTH / max(widest, 1.5)
    rows = []
    for number, (budget, interval) in enumerate(told):
        low, figure, high = (value / budget.limit * scale for value in (interval.low, interval.figure, interval.high))
        middle, colour = ROW * (number + 0.5), COLOURS[budget.verdict]
        rows.append(
            f'<text x="{LABELS - 8}" y="{middle + 5}" text-anchor="end">{escape(budget.name)}</text>'
            f'<line x1="{LABELS + low:.1f}" x2="{LABELS + high:.1f}" y1="{middle}" y2="{middle}" stroke="{colour}"'
            f' stroke-width="4" stroke-linecap="round"/>'
            f'<circle cx="{LABELS + figure:.1f}" cy="{middle}" r="5" fill="{colour}"/>'
        )
    limit = LABELS + scale
    line = f'<line x1="{limit}" x2="{limit}" y1="0" y2="{ROW * len(told)}" stroke="#444" stroke-dasharray="5 4"/>'
    head = "<h2>How far each row is from its limit</h2><p>Dashed: the limit. Bar: the 95 % interval of the median.</p>"
    return head + svg(ROW * len(told), line + "".join(rows))


def costs(budget: Budget) -> str:
    """Plot what the contenders of a row cost."""
    most = max(budget.costs.values())
    rows = []
    for number, (name, cost) in enumerate(budget.costs.items()):
        top, length = ROW * number, cost / most * (WIDTH - 90)
        rows.append(
            f'<text x="{LABELS - 8}" y="{top + 19}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{LABELS}" y="{top + 5}" width="{length:.1f}" height="{ROW - 10}" fill="#4c72b0"/>'
            f'<text x="{LABELS + length + 6:.1f}" y="{top + 19}">{cost:.4g} µs</text>'
        )
    return f"<h2>{escape(budget.name)}: CPU</h2>{svg(ROW * len(budget.costs), ''.join(rows))}"


def svg(height: float, inside: str) -> str:
    """Return a drawing of that height."""
    size = f'viewBox="0 0 {LABELS + WIDTH + 10} {height}" width="{LABELS + WIDTH + 10}"'
    return f'<svg {size} role="img" font-family="system-ui, sans-serif" font-size="14">{inside}</svg>'
