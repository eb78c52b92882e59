"""A comparison as tables, drawings and a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from otel_lifecycle._cli.comparison.blocks import ENOUGH_RUNS
from otel_lifecycle._cli.comparison.conditions import Difference
from otel_lifecycle._cli.comparison.document import Result
from otel_lifecycle._cli.comparison.figure import Comparison
from otel_lifecycle._cli.comparison.gates import Ruling
from otel_lifecycle._cli.comparison.verdicts import ALPHA
from otel_lifecycle._cli.render.comparison_charts import forest, overlays
from otel_lifecycle._cli.render.pages import Page, Section, render
from otel_lifecycle._cli.render.tables import Table
from otel_lifecycle._cli.text import NOTHING, number, plural, seconds, share, text

SPACE: Final = "\N{NO-BREAK SPACE}"
# One row on a usual screen.
TILES: Final = 4
USUAL: Final = frozenset({"ttft.p95", "tpot.p50", "e2e.p95", "success_rate"})
"""The figures at the head of a page, unless others have changed."""


FIGURES: Final = ("metric", "baseline", "candidate", "change", "samples")
VERDICTS: Final = ("metric", "verdict", "why", "95 % interval", "p (Holm)")
"""The figures in two tables, where one is too wide for the terminal."""


def tables(result: Result, *, narrow: bool = False) -> list[Table]:
    """Return the tables of a comparison; ``narrow``: for a terminal of 80 columns."""
    whole = _figures(result)
    parts = [_part(whole, "Figures", FIGURES, ""), _part(whole, "Verdicts", VERDICTS, whole.note)]
    found = [
        _sides(result),
        conditions("Conditions that differ", result.differences),
        conditions("Varied on purpose", result.varied),
        *(parts if narrow else [whole]),
        _gates(result),
    ]
    return [table for table in found if table.rows]


def _sides(result: Result) -> Table:
    return Table(
        title="Sides",
        columns=("side", "from", "runs", "requests"),
        rows=tuple(
            (side.name, ", ".join(side.sources), number(len(side.runs)), number(side.total))
            for side in (result.baseline, result.candidate)
        ),
        left=2,
    )


def conditions(title: str, found: Sequence[Difference]) -> Table:
    """Return the conditions in which two sides differ."""
    return Table(
        title=title,
        columns=("condition", "baseline", "candidate"),
        rows=tuple((one.condition, one.baseline, one.candidate) for one in found),
        left=3,
    )


def _figures(result: Result) -> Table:
    method = result.plain()["method"]
    tests = sorted({one.test for one in result.figures if one.test})
    return Table(
        title="Figures",
        columns=("metric", "verdict", "why", "baseline", "candidate", "change", "95 % interval", "p (Holm)", "samples"),
        rows=tuple(_row(one) for one in result.figures),
        left=3,
        note=f"e2e: of completed requests; interval: {method['interval']}; p: {'; '.join(tests)};"
        f" {method['correction']}, below {ALPHA}; no verdict on a change of less than"
        f" {result.min_effect:.0%}{_more_runs(result)}",
    )


def _part(whole: Table, title: str, columns: tuple[str, ...], note: str) -> Table:
    return replace(whole.without(frozenset({*whole.columns} - {*columns})), title=title, note=note)


def _more_runs(result: Result) -> str:
    """Return what more runs would add: runs of one side differ by the other load of the machine."""
    if result.by_runs:
        return ""
    return f", which the machine alone may do; {ENOUGH_RUNS} runs a side by turns (--baseline-run) tell more"


def _row(one: Comparison) -> tuple[str, ...]:
    # Smaller values mostly show how many permutations were drawn.
    p = NOTHING if one.p_corrected is None else "< 0.001" if one.p_corrected < 0.001 else f"{one.p_corrected:.3f}"
    values = (value(one, one.baseline), value(one, one.candidate))
    return (
        one.metric,
        one.verdict,
        text(one.reason),
        *values,
        _change(one, one.difference),
        _interval(one),
        p,
        _counts(one),
    )


def _interval(one: Comparison) -> str:
    if one.low is None or one.high is None:
        return NOTHING
    low, high = _change(one, one.low), _change(one, one.high)
    return f"{low.removesuffix(' pt')} to {high}"


def _counts(one: Comparison) -> str:
    return f"{number(one.baseline_count)} / {number(one.candidate_count)}"


def value(one: Comparison, figure: float | None) -> str:
    """Return a figure in the unit of its metric."""
    if one.rate or one.metric.startswith("stall_share"):
        return share(figure)
    return seconds(figure) if "." in one.metric else number(figure)


def _change(one: Comparison, difference: float | None) -> str:
    if difference is None:
        return NOTHING
    if one.rate:
        return f"{difference * 100:+.1f} pt"
    # From 0 there is no percentage.
    return f"{difference / one.baseline:+.1%}" if one.baseline else _signed(one, difference)


def _signed(one: Comparison, difference: float) -> str:
    return ("-" if difference < 0 else "+") + value(one, abs(difference))


def _gates(result: Result) -> Table:
    by_name = {one.metric: one for one in result.figures}
    rows = [
        (ruling.gate.text, _ruled(ruling), _moved(ruling, by_name[ruling.gate.metric])) for ruling in result.rulings
    ]
    return Table(title="Gates", columns=("fail on", "ruling", "change"), rows=tuple(rows), left=2)


def _ruled(ruling: Ruling) -> str:
    if ruling.failed:
        return "FAILED"
    if not ruling.judged:
        return f"NOT JUDGED ({ruling.reason})"
    return f"passed ({ruling.reason})" if ruling.reason else "passed"


def _moved(ruling: Ruling, one: Comparison) -> str:
    """Return the change that a gate saw, in the unit of its limit."""
    if ruling.gate.relative:
        return f"{ruling.change:+.1%}"
    if one.rate:
        return _change(one, ruling.change)
    unit = {"request_throughput": " requests/s", "token_throughput": " tokens/s"}.get(one.metric, "")
    return _signed(one, ruling.change) + unit


def page(result: Result) -> str:
    """Return the page of a comparison."""
    loud = [f"Forced: {plural(len(result.differences), 'condition')} differ, so these are not runs of one workload."]
    made = tables(result)
    rest = [Section(title=table.title, tables=[table]) for table in made if table.title != "Figures"]
    # The page is wide enough for the whole table, so it does not use the narrow one.
    figures = [replace(table, rows=tuple(map(_unbroken, table.rows))) for table in made if table.title == "Figures"]
    return render(
        Page(
            title="Comparison of two runs",
            subtitle=f"{', '.join(result.baseline.sources)} against {', '.join(result.candidate.sources)}",
            warnings=loud if result.differences else (),
            tiles=_tiles(result),
            sections=[
                Section(title=result.headline[:1].upper() + result.headline[1:], plots=[forest(result)]),
                Section(title="Distributions", plots=overlays(result)),
                Section(title="Figures", tables=figures),
                *rest,
            ],
        )
    )


def _unbroken(row: tuple[str, ...]) -> tuple[str, ...]:
    """Return a row of figures whose verdict stays on one line."""
    return (row[0], row[1].replace(" ", SPACE), *row[2:])


def headline_figures(result: Result) -> list[Comparison]:
    """Return the figures that head a page: first those that changed, then the usual ones."""
    usual = [one for one in result.figures if one.metric in USUAL]
    return list(dict.fromkeys([*(one for one in result.figures if one.told), *usual]))[:TILES]


def _tiles(result: Result) -> list[tuple[str, str]]:
    return [
        (
            f"{one.metric}: {value(one, one.baseline)} to {value(one, one.candidate)}, of {_counts(one)}",
            f"{_change(one, one.difference)}, {one.verdict}",
        )
        for one in headline_figures(result)
    ]
