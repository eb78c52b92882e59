"""Tables as values, so that the terminal and the page show the same figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from otel_lifecycle._cli.analysis.document import Document
from otel_lifecycle._cli.text import NOTHING, number, plural, printable, seconds, share, shorten, text

FIGURES: Final = ("p50", "p95", "p99")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A title, a head, rows of finished text, and a sentence below.

    ``left``: how many of the columns hold words and stand to the left; the others are figures.  ``wide``: columns that
    a narrow terminal does without, the last first.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1
    note: str = ""
    wide: frozenset[str] = frozenset()

    def without(self, columns: frozenset[str]) -> Table:
        """Return the table without some of its columns."""
        kept = [index for index, column in enumerate(self.columns) if column not in columns]
        return replace(
            self,
            columns=tuple(self.columns[index] for index in kept),
            rows=tuple(tuple(row[index] for index in kept) for row in self.rows),
            left=sum(index < self.left for index in kept),
        )


def report_tables(report: Document, limit: int) -> list[Table]:
    """Return the tables of a report, the most important first."""
    tables = [
        abnormal_kinds(report),
        abnormal_requests(report, limit),
        stages(report),
        latency(report),
        interference(report),
        culprits(report),
        output(report),
        conditions(report),
        parts("Workload classes", "class", report["classes"]),
        parts(f"By {report['group_by']}", text(report["group_by"]), report["groups"]),
        parts("Apart from all of the above", "traffic", report["apart"]),
        roles(report),
        startup(report),
        resources(report),
        trouble(report),
        beside(report),
    ]
    return [table for table in tables if table.rows]


def abnormal_kinds(report: Document) -> Table:
    """The ways in which requests ended without completing."""
    ended = report["requests"]["total"]
    return Table(
        title="Abnormal requests",
        columns=("outcome", "stage", "reason", "requests", "of all"),
        rows=tuple(
            (
                text(kind["outcome"]),
                text(kind["stage"]),
                text(kind["reason"]),
                number(kind["count"]),
                share(kind["count"] / ended),
            )
            for kind in report["abnormal"]["kinds"]
        ),
        left=3,
        note=f"{number(report['abnormal']['count'])} of {plural(ended, 'request')} did not complete",
    )


def abnormal_requests(report: Document, limit: int) -> Table:
    """The first of them, one by one."""
    shown = report["abnormal"]["requests"][:limit]
    more = report["abnormal"]["count"] - len(shown)
    return Table(
        title="… one by one",
        columns=("request", "trace", "outcome", "stage", "reason", "tokens out", "after"),
        rows=tuple(
            (
                shorten(text(row["request"]), 20),
                row["trace_id"],
                text(row["outcome"]),
                text(row["stage"]),
                text(row["reason"]),
                number(row["output_tokens"]),
                seconds(row["e2e"]),
            )
            for row in shown
        ),
        left=5,
        wide=frozenset({"tokens out", "after"}),
        note=f"and {number(more)} more" if more else "",
    )


def stages(report: Document) -> Table:
    """The time of completed requests by stage."""
    told = report["stages"]
    mix = ", ".join(f"{name} {share(count / told['bottleneck_count'])}" for name, count in told["bottlenecks"].items())
    note = f"{number(told['count'])} of {number(told['completed'])} completed requests have every boundary"
    if mix:
        note += f"; largest stage: {mix}"
    if told["preempted_requests"]:
        note += f"; {plural(told['preempted_requests'], 'request')} preempted {plural(told['preemptions'], 'time')}"
    return Table(
        title="Stages of completed requests",
        columns=("stage", "mean share", "mean", *FIGURES, "max", "requests"),
        rows=tuple(
            (row["stage"], share(row["mean_share"]), *_times(row, ("mean", *FIGURES, "max")), number(row["count"]))
            for row in told["rows"]
            if row["count"]
        ),
        note=note,
    )


def _times(figures: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    return [seconds(figures[name]) for name in names]


LATENCY_NAMES: Final = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "e2e_completed": "E2E of completed",
    "e2e": "E2E of all",
}
WITHIN_NAMES: Final = {
    "itl_p50": "ITL p50 per request",
    "itl_p95": "ITL p95 per request",
    "itl_p99": "ITL p99 per request",
    "itl_max": "ITL max per request",
}


def latency(report: Document) -> Table:
    """What users waited for."""
    told = report["latency"]
    rows = [(LATENCY_NAMES[name], *_figures(told[name], "request")) for name in LATENCY_NAMES if told[name]["count"]]
    if told["itl"]["count"]:
        rows.append(("ITL", *_figures(told["itl"], "gap")))
    within = told["itl_within_requests"]
    rows += [(name, *_figures(within[key], "request")) for key, name in WITHIN_NAMES.items() if within[key]["count"]]
    return Table(
        title="User latency",
        columns=("latency", "mean", *FIGURES, "max", "samples"),
        rows=tuple(rows),
        note="each over the requests that have it; quantiles exact",
    )


def _figures(figures: Mapping[str, Any], noun: str) -> list[str]:
    return [*_times(figures, ("mean", *FIGURES, "max")), plural(figures["count"], noun)]


def output(report: Document) -> Table:
    """What the system put out in the window."""
    told, requests = report["output"], report["requests"]
    ended = f"of {number(told['terminated'])} ended"
    rows: list[tuple[str, str, str]] = [
        ("success rate", share(told["success_rate"]), ended),
        *((name, number(requests[name]), ended) for name in ("completed", "cancelled", "timed_out", "failed")),
        ("incomplete", number(requests["incomplete"]), "no terminal event; outside every rate"),
        ("rejection rate", share(told["rejection_rate"]), f"{number(told['rejected'])} {ended}"),
        ("timeout rate", share(told["timeout_rate"]), f"{number(told['timed_out'])} {ended}"),
        (
            "request throughput",
            _per_second(told["request_throughput"], "req"),
            f"{number(requests['completed'])} completed",
        ),
        (
            "token throughput",
            _per_second(told["token_throughput"], "tok"),
            f"{number(told['output_tokens'])} tokens of {plural(told['output_tokens_count'], 'request')}",
        ),
        ("in flight", number(told["in_flight_mean"]), f"mean; peak {number(told['in_flight_peak'])}"),
    ]
    if told["slo_judged"]:
        rows.append(("goodput", share(told["goodput"]), f"met their SLO, of {number(told['slo_judged'])} judged"))
    if told["wasted_tokens"]:
        rows.append(("wasted tokens", number(told["wasted_tokens"]), "produced after their request had ended"))
    if told["illegal"]:
        rows.append(("illegal", number(told["illegal"]), "requests with an illegal transition; see: check"))
    window = report["window"]
    return Table(
        title="System output",
        columns=("figure", "value", "over"),
        rows=tuple(rows) if requests["total"] else (),
        note=f"window {text(window['start'])} to {text(window['end'])} ({seconds(window['seconds'])})",
    )


def _per_second(value: float | None, noun: str) -> str:
    return NOTHING if value is None else f"{number(value)} {noun}/s"


def conditions(report: Document) -> Table:
    """Under what conditions."""
    told = report["conditions"]
    rows = [(name, _mix(values), number(sum(values.values()))) for name, values in told["stated"].items()]
    rows += [
        (
            name.replace("_", " "),
            f"p50 {number(figures['p50'])}, p95 {number(figures['p95'])}, max {number(figures['max'])}",
            number(figures["count"]),
        )
        for name, figures in told["measured"].items()
        # Batch size and concurrency can be both stated and measured; one row is enough.
        if name.replace("_", " ") not in told["stated"]
    ]
    arrivals = told["arrivals"]
    if arrivals["count"]:
        rows.append(("arrivals", arrivals["pattern"], number(arrivals["count"])))
    return Table(title="Conditions", columns=("condition", "value", "requests"), rows=tuple(rows), left=2)


def _mix(values: Mapping[str, int]) -> str:
    total, shown = sum(values.values()), list(values.items())[:4]
    if len(values) == 1:
        return shorten(text(next(iter(values))))
    rest = f", {len(values) - 4} more" if len(values) > 4 else ""
    return ", ".join(f"{shorten(text(value), 30)} ({share(count / total)})" for value, count in shown) + rest


def parts(title: str, column: str, found: Iterable[Document]) -> Table:
    """Classes, groups or other traffic, a row each."""
    rows = [
        (
            shorten(text(part["name"]), 40),
            number(part["total"]),
            share(part["success_rate"]),
            *(_p50_p95(part[name]) for name in ("ttft", "tpot", "e2e_completed")),
            _top(part["bottlenecks"]),
            part["arrivals"],
        )
        for part in found
    ]
    columns = (
        column,
        "requests",
        "success",
        "TTFT p50 / p95",
        "TPOT p50 / p95",
        "E2E p50 / p95",
        "bottleneck",
        "arrivals",
    )
    note = f"success is of those that ended, E2E of those that completed; {IN_BRACKETS}"
    wide = frozenset({"success", "bottleneck", "arrivals"})
    return Table(title=title, columns=columns, rows=tuple(rows), note=note, wide=wide)


IN_BRACKETS: Final = "in brackets: how many have the figure"


def _p50_p95(figures: Mapping[str, Any]) -> str:
    """Return both with one unit where they share it, and the number of samples."""
    if not figures["count"]:
        return NOTHING
    p50, p95 = seconds(figures["p50"]), seconds(figures["p95"])
    # Half the width: three such columns fit on 80 characters.
    if p50.split()[1] == p95.split()[1]:
        p50 = p50.split()[0]
    return f"{p50} / {p95} ({number(figures['count'])})"


def _top(counts: Mapping[str, int]) -> str:
    if not counts:
        return NOTHING
    name, count = next(iter(counts.items()))
    return f"{name} {share(count / sum(counts.values()))}"


def roles(report: Document) -> Table:
    """The halves of disaggregated requests, and parts of requests: stage times only."""
    columns = ("queue_wait", "preprocessing", "prefill", "decode_time")
    rows = [
        (text(role["name"]), number(role["total"]), *(_p50_p95(role[column]) for column in columns))
        for role in report["roles"]
    ]
    return Table(
        title="Parts of requests",
        columns=("role", "spans", *(f"{name.replace('_', ' ')} p50 / p95" for name in columns)),
        rows=tuple(rows),
        note=f"halves and parts of requests; they count in nothing above; {IN_BRACKETS}",
    )


def startup(report: Document) -> Table:
    """The cold start."""
    rows = [
        (text(phase["phase"]), seconds(phase["mean"]), seconds(phase["longest"]), number(phase["count"]))
        for phase in report["startup"]["phases"]
    ]
    launch = ", ".join(text(f"{key} {value}") for key, value in report["startup"]["launch"].items())
    return Table(title="Cold start", columns=("phase", "mean", "longest", "times"), rows=tuple(rows), note=launch)


def resources(report: Document) -> Table:
    """Memory, cache and device, where recorded."""
    rows = [
        (gauge["name"], text(gauge["labels"]), number(gauge["mean"]), number(gauge["peak"]), number(gauge["count"]))
        for gauge in report["resources"]
    ]
    return Table(title="Resources", columns=("gauge", "of", "mean", "peak", "readings"), rows=tuple(rows), left=2)


def trouble(report: Document) -> Table:
    """What was not read, and why."""
    rows = [
        (number(item["count"]), item["meaning"], shorten(printable("; ".join(item["places"][:2])), 90))
        for item in report["trouble"]
    ]
    read = report["read"]
    return Table(
        title="What was not read",
        columns=("how many", "what", "where, at first"),
        rows=tuple(rows),
        left=3,
        note=f"read: {plural(read.get('spans', 0), 'span')} in {plural(read.get('messages', 0), 'message')}",
    )


def beside(report: Document) -> Table:
    """What the sources contain besides requests; other spans in a trace are normal."""
    rows = [(number(item["count"]), item["meaning"]) for item in report["beside"]]
    return Table(title="Beside the requests", columns=("how many", "what"), rows=tuple(rows), left=2)


def interference(report: Document) -> Table:
    """Delays of requests beyond their own work."""
    told = report["interference"]
    queue, stalled = told["queue"], told["stalls"]
    rows: list[tuple[str, str, str]] = []
    if queue["count"]:
        over = f"of {seconds(queue['wait'])} of waiting, {plural(queue['count'], 'request')}"
        stages = ("preprocessing", "prefill", "decode")
        rows += [(f"waited beside {name} of others", seconds(queue[name]), over) for name in stages]
        rows.append(("waited while no request was running", seconds(queue["idle"]), over))
    if stalled["count"]:
        over = f"of {seconds(stalled['decode_time'])} of decode, {plural(stalled['count'], 'request')}"
        for name, words in _STALLED.items():
            part = share(stalled[name] / stalled["decode_time"]) if stalled["decode_time"] else NOTHING
            rows.append((words, f"{seconds(stalled[name])} ({part})", over))
    rows += [
        (f"others running in {stage}", number(found["mean"]), f"mean of {plural(found['count'], 'request')}")
        for stage, found in told["company"].items()
        if found["count"]
    ]
    mix = ", ".join(f"{text(cause)} {number(count)}" for cause, count in told["causes"].items())
    notes = [f"bottleneck and its cause: {mix}"] if mix else []
    if told["incomplete"]:
        notes.append(f"{plural(told['incomplete'], 'request')} had neighbours that were still unknown")
    return Table(title="Interference", columns=("what", "time", "over"), rows=tuple(rows), note="; ".join(notes))


_STALLED: Final = {
    "prefill": "stalled beside prefill of others",
    "preemption": "stalled by its own preemption",
    "unexplained": "stalled, unexplained",
}


def culprits(report: Document) -> Table:
    """The requests that delayed others for the longest time."""
    rows = [
        (shorten(text(one["request"]), 20), one["trace_id"], seconds(one["time"]), number(one["requests"]))
        for one in report["interference"]["culprits"]
    ]
    columns = ("request", "trace", "held others up", "requests")
    return Table(title="Requests that others waited for", columns=columns, rows=tuple(rows), left=2)
