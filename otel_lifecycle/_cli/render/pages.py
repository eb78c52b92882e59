"""One self-contained page: no request to any network, one small script, readable in light and dark and without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jinja2
from markupsafe import Markup

from otel_lifecycle._cli.analysis.document import Document
from otel_lifecycle._cli.analysis.workload import Workload
from otel_lifecycle._cli.diagnosis.diagnosis import Diagnosis
from otel_lifecycle._cli.draw import theme
from otel_lifecycle._cli.render import plots, tables
from otel_lifecycle._cli.render.tables import Table
from otel_lifecycle._cli.requests.model import STAGE_METRIC
from otel_lifecycle._cli.text import number, plural, seconds, share, text
from otel_lifecycle._cli.trace.charts import stages_waterfall
from otel_lifecycle._version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading, the drawings under it, the tables under those, and what can be opened: (anchor, title, drawing)."""

    title: str
    plots: Sequence[str] = ()
    tables: Sequence[Table] = ()
    details: Sequence[tuple[str, str, str]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A whole page."""

    title: str
    subtitle: str
    sections: Sequence[Section]
    tiles: Sequence[tuple[str, str]] = ()
    warnings: Sequence[str] = ()
    diagnosis: Diagnosis | None = None


def render(page: Page) -> str:
    """Return the page as HTML; everything that came from a trace is escaped."""
    # The environment escapes every value; the template exempts only drawings, which draw.svg has escaped.
    loader = jinja2.PackageLoader("otel_lifecycle._cli.render")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("page.html.j2").render(
        title=page.title,
        subtitle=page.subtitle,
        warnings=page.warnings,
        tiles=[{"name": name, "value": value} for name, value in page.tiles],
        diagnosis=page.diagnosis,
        sections=page.sections,
        styles=theme.stylesheet(),
        script=theme.script(),
        contents=len(page.sections) >= LONG,
        version=__version__,
    )


LONG: Final = 5
"""Sections from which a page has a table of contents."""


def report_page(workload: Workload, report: Document, diagnosis: Diagnosis, limit: int) -> str:
    """Return the page of a report."""
    window, requests = report["window"], report["requests"]
    sections = [
        Section(title="Outcomes and bottlenecks", plots=[plots.mix(report)]) if requests["total"] else None,
        _section("Abnormal requests", [tables.abnormal_kinds(report), tables.abnormal_requests(report, limit)]),
        _stages(workload, report),
        _latency(workload, report),
        _section("Interference", [tables.interference(report), tables.culprits(report)]),
        _section("System output", [tables.output(report)]),
        _slowest(workload.slowest()),
        _section("Conditions", [tables.conditions(report)]),
        _section("Workload classes", [tables.parts("", "class", report["classes"])]),
        _section(f"By {report['group_by']}", [tables.parts("", text(report["group_by"]), report["groups"])]),
        _section("Apart from all of the above", [tables.parts("", "traffic", report["apart"]), tables.roles(report)]),
        _section("Cold start and resources", [tables.startup(report), tables.resources(report)]),
        _section("What was not read", [tables.trouble(report)]),
        _section("Beside the requests", [tables.beside(report)]),
    ]
    return render(
        Page(
            title=f"Inference workload: {plural(requests['total'], 'request')}",
            subtitle=f"{text(window['start'])} to {text(window['end'])} ({seconds(window['seconds'])}) · "
            + ", ".join(report["sources"]),
            tiles=_tiles(report),
            warnings=_warnings(report),
            diagnosis=diagnosis,
            sections=[section for section in sections if section is not None],
        )
    )


def _tiles(report: Document) -> list[tuple[str, str]]:
    latency, output = report["latency"], report["output"]
    found = [(f"success rate, of {number(output['terminated'])} ended", share(output["success_rate"]))]
    for key, name, whose in (("ttft", "TTFT", ""), ("tpot", "TPOT", ""), ("e2e_completed", "E2E", " completed")):
        if latency[key]["count"]:
            found.append((f"{name} p95, of {number(latency[key]['count'])}{whose}", seconds(latency[key]["p95"])))
    if output["request_throughput"] is not None:
        found.append(("completed per second", number(output["request_throughput"])))
    return found


def _warnings(report: Document) -> list[str]:
    told = list(report["warnings"])
    if report["output"]["illegal"]:
        told.append(
            f"{plural(report['output']['illegal'], 'request')} made an illegal transition; see otel-lifecycle check."
        )
    if report["requests"]["incomplete"]:
        count = plural(report["requests"]["incomplete"], "request")
        told.append(f"{count} never ended, and are not in the success rate.")
    return told


def _section(title: str, found: Sequence[Table]) -> Section | None:
    shown = [table for table in found if table.rows]
    return Section(title=title, tables=shown) if shown else None


def _stages(workload: Workload, report: Document) -> Section | None:
    if not report["stages"]["count"]:
        return None
    return Section(
        title="Stages of completed requests", plots=[plots.over_time(workload)], tables=[tables.stages(report)]
    )


def _latency(workload: Workload, report: Document) -> Section | None:
    table = tables.latency(report)
    if not table.rows:
        return None
    latency, table_ = report["latency"], workload.table
    drawn = [
        plots.distribution(table_, name, tables.LATENCY_NAMES[name], latency[name])
        for name in ("ttft", "tpot", "e2e_completed")
        if latency[name]["count"]
    ]
    within = latency["itl_within_requests"]["itl_p99"]
    if latency["itl"]["relative_error"] is not None:
        drawn.insert(2, plots.distribution(table_, "gap", "ITL", latency["itl"], plots.GAPS))
    # Without single gaps the p99 of each request is the next best; it is named so in the title.
    elif within["count"]:
        drawn.insert(2, plots.distribution(table_, "itl_p99", "ITL, p99 of a request", within))
    scatter = plots.against_length(table_)
    return Section(title="User latency", plots=[*drawn, scatter] if scatter else drawn, tables=[table])


def _slowest(requests: Sequence[Mapping[str, Any]]) -> Section | None:
    if not requests:
        return None
    # Span ids are hex, so they are safe as anchors.
    anchors = {one["span_id"]: f"request-{one['span_id']}" for one in requests}
    return Section(
        title="The slowest completed requests",
        plots=[plots.slowest(requests, {key: f"#{anchor}" for key, anchor in anchors.items()})],
        tables=[_slow_table(requests)],
        details=[(anchors[one["span_id"]], plots.short_name(one), str(_waterfall(one))) for one in requests],
    )


def _waterfall(request: Mapping[str, Any]) -> Markup:
    return stages_waterfall(
        request["name"], {stage: request[metric] for stage, metric in STAGE_METRIC.items()}, request["e2e"]
    )


def _slow_table(requests: Sequence[Mapping[str, Any]]) -> Table:
    return Table(
        title="",
        columns=("request", "trace", "bottleneck", "TTFT", "E2E", "tokens in", "tokens out"),
        rows=tuple(
            (
                text(one["request_id"]),
                one["trace_id"],
                text(one["bottleneck"]),
                seconds(one["ttft"]),
                seconds(one["e2e"]),
                number(one["input_tokens"]),
                number(one["output_tokens"]),
            )
            for one in requests
        ),
        left=3,
        note="one of them as a page of its own: otel-lifecycle view TRACE SOURCE",
    )
