"""One request as sections, and as a drawing on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from rich.cells import set_cell_size
from rich.console import Console
from rich.text import Text

from otel_lifecycle._cli.render.sections import Presentation, Section, Table, table_of, written
from otel_lifecycle._table.requests.model import DURATIONS, STAGE_METRIC, STAGES
from otel_lifecycle._table.row import TableRow
from otel_lifecycle._table.text import NOTHING, instant, number, plural, seconds, share, shorten, text
from otel_lifecycle._table.violations import findings
from otel_lifecycle._trace import charts
from otel_lifecycle._trace.anatomy import Anatomy, Bar
from otel_lifecycle._trace.facts import attributes_of, facts_of
from otel_lifecycle._trace.neighbours import NeighbourTrack

WIDTH: Final = 64
"""Characters of the waterfall on a terminal, at most."""
NAME: Final = 26
FIGURE: Final = 9
"""Characters of the name and of the figure, left and right of the waterfall."""
STYLES: Final = {
    "queue": "yellow",
    "preprocessing": "magenta",
    "prefill": "blue",
    "decode": "green",
    "preempted": "red",
    "muted": "bold",
    "other": "dim",
}
ITL: Final = {"p50": "median gap", "p95": "p95 gap", "p99": "p99 gap", "max": "longest gap"}
HEIGHTS: Final = " ▁▂▃▄▅▆▇"
"""Cells of the token timeline, by how many tokens fall into one."""
NO_TOKENS: Final = (
    "The span only has sums of its tokens. It has their times with LifecycleSpanProcessor(token_times=True), "
    "or with an event for each token."
)


def presented(found: Anatomy) -> Presentation:
    """Return a request ready for any form."""
    row = found.row
    broken = violations(row)
    return Presentation(
        command="view",
        headline=f"{text(row['name'])}: {row['outcome']}",
        plain=plain(found),
        sections=[
            Section(title="Waterfall", charts=lambda: [charts.waterfall(found)]),
            Section(
                title="Attribution",
                tables=[attribution(found)],
                charts=lambda: [charts.shares(found.shares)] if found.shares else [],
            ),
            Section(
                title="Tokens",
                tables=[stalls(found), latencies(row)],
                charts=lambda: [charts.timeline(found), charts.gaps(found)] if len(found.tokens) > 1 else [],
            ),
            Section(
                title="Neighbours",
                tables=[neighbours(found)],
                charts=lambda: [charts.neighbours(found)] if found.neighbours else [],
            ),
            Section(title=broken.title, tables=[broken]),
            Section(title="Attributes", tables=[attributes(found)]),
        ],
        title=f"{row['name']}: {row['outcome']}",
        subtitle=f"trace {row['trace_id']} · arrived {instant(row['arrival_ns'])}",
        sketch=partial(sketch, found),
        warnings=_warnings(found),
        tiles=facts_of(row),
    )


def plain(found: Anatomy) -> dict[str, Any]:
    """Return the request as plain data."""
    row = found.row
    return {
        "trace_id": row["trace_id"],
        "span_id": row["span_id"],
        "name": row["name"],
        "arrival": instant(row["arrival_ns"]),
        **{key: row.get(key) for key in ("outcome", "failure_stage", "reason", "bottleneck", "dominant_share")},
        "shares": found.shares,
        "seconds": {name: row[name] for name in DURATIONS if row.get(name) is not None},
        "itl": {key: row[f"itl_{key}"] for key in ITL if row.get(f"itl_{key}") is not None},
        **{key: row.get(key) for key in ("input_tokens", "output_tokens", "legal")},
        "violations": [one.plain() for one in findings(row)],
        "caller": None if found.caller is None else asdict(found.caller),
        "waterfall": [{"name": bar.name, "start": bar.start, "end": bar.end, "depth": bar.depth} for bar in found.bars],
        "tokens": found.tokens,
        "stalls": [
            {
                "after_token": one.token,
                "start": one.start,
                "length": one.length,
                "cause": one.cause,
                "beside": one.beside,
            }
            for one in found.stalls
        ],
        "neighbours": [asdict(one) for one in found.neighbours],
        "attributes": dict(found.found.attributes),
    }


def sketch(found: Anatomy, out: Console) -> None:
    """Draw a request on a terminal: a line for each span, for its tokens and for each neighbour."""
    row = found.row
    title = Text.assemble((text(row["name"]), "bold"), f"  {row['outcome']}  trace {row['trace_id']}")
    out.print(title, highlight=False, soft_wrap=True)
    out.print(f"arrived {instant(row['arrival_ns'])}\n", style="dim")
    total = max((bar.end for bar in found.bars), default=0.0) or 1.0
    first = min((bar.start for bar in found.bars), default=0.0)
    width = max(10, min(WIDTH, out.width - NAME - FIGURE - 2))
    for bar in found.bars:
        scale = width / ((total - first) or 1.0)
        left, right = round((bar.start - first) * scale), round((bar.end - first) * scale)
        # A span that begins at the very end still gets a mark.
        left = min(left, width - 1)
        line = Text(f"{_label(bar)} ")
        line.append(" " * left)
        # A span shorter than a character must not disappear.
        line.append("█" * (right - left) or "▏", style=STYLES[bar.colour])
        line.append(" " * (width - max(right, left + 1)))
        line.append(f" {seconds(bar.end - bar.start):>{FIGURE}}", style="dim")
        out.print(line, soft_wrap=True)
    if found.tokens:
        out.print(_token_line(found, first, total, width), soft_wrap=True)
    for other in found.neighbours:
        out.print(_neighbour_line(other, first, total, width), soft_wrap=True)
    out.print(f"\n{_tokens_line(found)}", style="dim")


def _label(bar: Bar) -> str:
    """Return a bar's name behind its depth, as wide as every other; some characters take two columns."""
    indent = "  " * min(bar.depth, 6)
    return set_cell_size(indent + shorten(text(bar.name), NAME - len(indent) - 1), NAME)


def _tokens_line(found: Anatomy) -> str:
    known, total = len(found.tokens), found.row.get("output_tokens")
    if not known:
        return NO_TOKENS
    if total is not None and known < total:
        return f"{number(known)} of {plural(total, 'token')} have a time"
    return f"{plural(known, 'token')} with a time"


def _token_line(found: Anatomy, first: float, total: float, width: int) -> Text:
    """Return the tokens over time, on the scale of the bars: the higher, the more tokens; a dot is a stall."""
    counts, scale = [0] * width, width / ((total - first) or 1.0)
    for time in found.tokens:
        counts[min(max(int((time - first) * scale), 0), width - 1)] += 1
    stalled = {
        column
        for one in found.stalls
        # The columns between the two tokens; those of the tokens themselves show the tokens.
        for column in range(int((one.start - first) * scale) + 1, int((one.start + one.length - first) * scale))
    }
    line, most = Text(f"{set_cell_size('tokens', NAME)} "), max(counts)
    for column, count in enumerate(counts):
        if count:
            line.append(HEIGHTS[(count * (len(HEIGHTS) - 1) + most - 1) // most], style=STYLES["decode"])
        else:
            line.append("·" if column in stalled else " ", style=STYLES["preempted"])
    line.append(f" {number(len(found.tokens)):>{FIGURE}}", style="dim")
    return line


def _neighbour_line(other: NeighbourTrack, first: float, total: float, width: int) -> Text:
    """Return the stages of a neighbour on the scale of the bars, and how long the request blames it for."""
    cells, scale = [""] * width, width / ((total - first) or 1.0)
    for one in other.stages:
        left = min(int((one.start - first) * scale), width - 1)
        for column in range(left, max(left + 1, round((one.end - first) * scale))):
            if column < width:
                cells[column] = one.stage
    line = Text(f"{set_cell_size('· ' + shorten(text(other.name), NAME - 3), NAME)} ")
    for stage in cells:
        line.append("▄" if stage else " ", style=STYLES[stage] if stage else "")
    held = sum(time for time in (other.queue, other.stall) if time is not None)
    line.append(f" {seconds(held) if held else NOTHING:>{FIGURE}}", style="dim")
    return line


def neighbours(found: Anatomy) -> Table:
    """The requests that were beside it, and for how long it blames them."""

    def meanwhile(stages: Sequence[Mapping[str, Any]]) -> str:
        return ", ".join(f"{one['stage']} {seconds(one['end'] - one['start'])}" for one in stages)

    return table_of(
        "Neighbours",
        map(asdict, found.neighbours),
        written(text, "beside it:name"),
        written(seconds, "waited:queue", "stalled:stall"),
        written(meanwhile, "its stages meanwhile:stages"),
    )


def attribution(found: Anatomy) -> Table:
    """The time in each stage; the caller's time before arrival comes first and is not part of the request."""
    row, caller = found.row, found.caller
    before = [("before arrival", seconds(caller.before), NOTHING)] if caller is not None and caller.before else []
    rows = before + [(stage, seconds(row.get(STAGE_METRIC[stage])), share(found.shares.get(stage))) for stage in STAGES]
    known = [one for one in rows if one[1] != NOTHING]
    verdict = f"bottleneck: {text(row['bottleneck'])}" if row.get("bottleneck") else "no bottleneck named: "
    if not row.get("bottleneck"):
        verdict += "a boundary is unknown" if row["outcome"] == "completed" else f"it was {row['outcome']}"
    return Table(title="Attribution", columns=("stage", "time", "share"), rows=tuple(known), note=verdict)


def stalls(found: Anatomy) -> Table:
    """Gaps that stand out."""
    rows = [
        (
            number(one.token),
            seconds(one.start),
            seconds(one.length),
            NOTHING if one.cause is None else charts.cause_told(one),
        )
        for one in found.stalls
    ]
    return Table(title="Stalls", columns=("after token", "at", "stall", "why"), rows=tuple(rows), left=0)


def attributes(found: Anatomy) -> Table:
    """All attributes of the span."""
    rows = tuple(attributes_of(found.found.attributes))
    return Table(title="Attributes", columns=("attribute", "value"), rows=rows, left=2, page_only=True)


def violations(row: TableRow) -> Table:
    """What was illegal."""
    told = (one.plain() for one in findings(row))
    return table_of("Violations", told, written(text, "kind", "event", "state", "rule"), left=4)


def _warnings(found: Anatomy) -> list[str]:
    told = []
    if found.row.get("legal") is False:
        told.append("This request made an illegal transition; what it says of times may be incomplete.")
    if found.skewed:
        cannot = "begin before their parent or, as stages, end after it"
        told.append(f"{plural(found.skewed, 'span')} {cannot}: the clocks of two hosts disagree.")
    if found.found.others:
        told.append(f"{plural(found.found.others, 'more request')} in this trace; name one by its span id.")
    if not found.tokens:
        told.append(NO_TOKENS)
    return told


def latencies(row: TableRow) -> Table:
    """Gaps between its tokens, as its own process summarised them."""
    names = {f"itl_{key}": name for key, name in ITL.items()} | {"tpot": "TPOT", "token_span": "first to last token"}
    rows = [(name, seconds(row[key])) for key, name in names.items() if row.get(key) is not None]
    return Table(title="", columns=("latency", "time"), rows=tuple(rows), page_only=True)
