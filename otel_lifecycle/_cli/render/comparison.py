"""A comparison as sections."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Final

from otel_lifecycle._analysis.comparison.blocks import ENOUGH_RUNS
from otel_lifecycle._analysis.comparison.document import Result
from otel_lifecycle._analysis.comparison.figure import Comparison
from otel_lifecycle._analysis.comparison.gates import Ruling
from otel_lifecycle._analysis.comparison.verdicts import ALPHA
from otel_lifecycle._cli.render.sections import JudgedCase, Presentation, Section, Table, table_of, written
from otel_lifecycle._table.text import NOTHING, number, plural, seconds, share, text

# One row on a usual screen.
TILES: Final = 4
USUAL: Final = frozenset({"ttft.p95", "tpot.p50", "e2e.p95", "success_rate"})
"""The figures at the head of a page, unless others have changed."""


FIGURES: Final = ("metric", "baseline", "candidate", "change", "samples")
VERDICTS: Final = ("metric", "verdict", "why", "95 % interval", "p (Holm)")
"""The figures in two tables, where one is too wide for the terminal."""


def presented(result: Result) -> Presentation:
    """Return a comparison ready for any form."""

    def drawn() -> tuple[list[str], list[str]]:
        # Only a page needs the drawing.
        from otel_lifecycle._cli.render.comparison_charts import forest, overlays

        return [forest(result)], list(overlays(result))

    headline, tables = result.headline, [_sides(result), *_differing(result), _figures(result), _gates(result)]
    differ = f"Forced: {plural(len(result.differences), 'condition')} differ, so these are not runs of one workload."
    return Presentation(
        command="compare",
        headline=headline,
        plain=result.plain(),
        sections=[
            Section(title=headline[:1].upper() + headline[1:], charts=lambda: drawn()[0]),
            Section(title="Distributions", charts=lambda: drawn()[1]),
            *(Section(title=table.title, tables=[table]) for table in tables),
        ],
        cases=[*map(_gate_case, result.rulings), *map(_figure_case, result.figures)],
        title="Comparison of two runs",
        subtitle=f"{', '.join(result.baseline.sources)} against {', '.join(result.candidate.sources)}",
        closing=headline,
        warnings=[differ] if result.differences else (),
        tiles=_tiles(result),
    )


def _gate_case(one: Ruling) -> JudgedCase:
    """A gate fails as the exit code says."""
    return JudgedCase(
        name=f"gate {one.gate.text}",
        failure=f"changed by {one.change:+.3g}" if one.failed else "",
        error="" if one.judged else one.reason,
        told=one.reason,
    )


def _figure_case(one: Comparison) -> JudgedCase:
    """A figure without a gate never fails."""
    return JudgedCase(name=one.metric, told=f"{one.baseline} to {one.candidate}: {one.verdict} {one.reason}".strip())


def _sides(result: Result) -> Table:
    sides = [
        {"side": side.name, "from": ", ".join(side.sources), "runs": len(side.runs), "requests": side.total}
        for side in (result.baseline, result.candidate)
    ]
    return table_of("Sides", sides, written(str, "side", "from"), written(number, "runs", "requests"), left=2)


def _differing(result: Result) -> list[Table]:
    found = (("Conditions that differ", result.differences), ("Varied on purpose", result.varied))
    columns = ("condition", "baseline", "candidate")
    return [table_of(title, map(asdict, some), written(str, *columns), left=3) for title, some in found]


def _figures(result: Result) -> Table:
    method = result.plain()["method"]
    tests = sorted({one.test for one in result.figures if one.test})
    whole = Table(
        title="Figures",
        columns=("metric", "verdict", "why", "baseline", "candidate", "change", "95 % interval", "p (Holm)", "samples"),
        rows=tuple(_row(one) for one in result.figures),
        left=3,
        note=f"e2e: of completed requests; interval: {method['interval']}; p: {'; '.join(tests)};"
        f" {method['correction']}, below {ALPHA}; no verdict on a change of less than"
        f" {result.min_effect:.0%}{_more_runs(result)}",
    )
    parts = (_part(whole, "Figures", FIGURES, ""), _part(whole, "Verdicts", VERDICTS, whole.note))
    return replace(whole, narrow=parts)


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
