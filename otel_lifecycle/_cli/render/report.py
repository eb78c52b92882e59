"""A workload's report as sections."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from otel_lifecycle._analysis.diagnosis.diagnosis import Diagnosis
from otel_lifecycle._analysis.document import Document
from otel_lifecycle._analysis.workload import Workload
from otel_lifecycle._cli.render import report_tables as tables
from otel_lifecycle._cli.render.sections import JudgedCase, Presentation, Section, table_of, written
from otel_lifecycle._table.text import number, plural, seconds, share, text


def presented(workload: Workload, report: Document, diagnosis: Diagnosis, limit: int) -> Presentation:
    """Return a report ready for any form; ``limit``: abnormal requests shown one by one."""
    window, headline = report["window"], title_of(report)
    cases = [
        JudgedCase(
            name=one.cause,
            # Strong evidence fails a build, anything less does not.
            failure=f"{one.symptom}; look at {one.look_at}" if one.confidence == "strong" else "",
            told="\n".join(one.evidence),
        )
        for one in diagnosis.findings
    ]
    return Presentation(
        command="report",
        headline=headline,
        plain={**report, "diagnosis": diagnosis.plain()},
        sections=sections_of(workload, report, limit),
        cases=cases or [JudgedCase(name=diagnosis.headline)],
        title=f"Inference workload: {plural(report['requests']['total'], 'request')}",
        subtitle=f"{text(window['start'])} to {text(window['end'])} ({seconds(window['seconds'])}) · "
        + ", ".join(report["sources"]),
        opening=f"{headline}, from {', '.join(report['sources'])}",
        notes=report["warnings"],
        warnings=_warnings(report),
        tiles=_tiles(report),
        diagnosis=diagnosis,
    )


def title_of(document: Document) -> str:
    """Return how many requests there were and what part completed, of those that ended."""
    requests, success = document["requests"], share(document["output"]["success_rate"])
    total, endless = plural(requests["total"], "request"), requests["incomplete"]
    if not endless:
        return f"{total}, {success} completed"
    ended = f"{number(requests['terminated'])} ended"
    if requests["terminated"]:
        ended += f", {success} of those completed"
    return f"{total}, {ended}; {number(endless)} never ended"


def sections_of(workload: Workload, report: Document, limit: int) -> list[Section]:
    """Return the sections of a report, the most important first."""

    def drawn(name: str) -> Sequence[str]:
        # Only a page needs the drawing.
        from otel_lifecycle._cli.render import plots

        return plots.CHARTS[name](workload, report)

    group = text(report["group_by"])
    return [
        Section(title="Outcomes and bottlenecks", charts=partial(drawn, "mix")),
        Section(
            title="Abnormal requests", tables=[tables.abnormal_kinds(report), tables.abnormal_requests(report, limit)]
        ),
        Section(title="Stages of completed requests", tables=[tables.stages(report)], charts=partial(drawn, "stages")),
        Section(title="User latency", tables=[tables.latency(report)], charts=partial(drawn, "latency")),
        Section(title="Interference", tables=[tables.interference(report), tables.culprits(report)]),
        Section(title="System output", tables=[tables.output(report)]),
        _slowest(workload, report),
        Section(title="Conditions", tables=[tables.conditions(report)]),
        Section(title="Workload classes", tables=[tables.parts("Workload classes", "class", report["classes"])]),
        Section(title=f"By {group}", tables=[tables.parts(f"By {group}", group, report["groups"])]),
        Section(title=APART, tables=[tables.parts(APART, "traffic", report["apart"]), tables.roles(report)]),
        Section(title="Cold start and resources", tables=[tables.startup(report), tables.resources(report)]),
        Section(title="What was not read", tables=[tables.trouble(report)]),
        Section(title="Beside the requests", tables=[tables.beside(report)]),
    ]


APART: Final = "Apart from all of the above"


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
    illegal, endless = report["output"]["illegal"], report["requests"]["incomplete"]
    told = [f"{plural(illegal, 'request')} made an illegal transition; see otel-lifecycle check."] if illegal else []
    return told + ([f"{plural(endless, 'request')} never ended, and are not in the success rate."] if endless else [])


def _slowest(workload: Workload, report: Document) -> Section:
    def drawn(name: str) -> Any:
        from otel_lifecycle._cli.render import plots

        return getattr(plots, name)(workload.slowest())

    table = table_of(
        "The slowest completed requests",
        report["slowest"],
        written(text, "request", "trace:trace_id", "bottleneck"),
        written(seconds, "TTFT:ttft", "E2E:e2e"),
        written(number, "tokens in:input_tokens", "tokens out:output_tokens"),
        left=3,
        note="one of them as a page of its own: otel-lifecycle view TRACE SOURCE",
        page_only=True,
    )
    return Section(
        title=table.title, tables=[table], charts=partial(drawn, "slowest"), details=partial(drawn, "waterfalls")
    )
