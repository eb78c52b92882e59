"""The tables of a workload's report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from otel_lifecycle._analysis.document import Document
from otel_lifecycle._cli.render.sections import FIGURES, Table, table_of, written
from otel_lifecycle._table.text import NOTHING, number, plural, printable, seconds, share, shorten, text


def _brief(width: int) -> Any:
    return lambda value: shorten(text(value), width)


def abnormal_kinds(report: Document) -> Table:
    """The ways in which requests ended without completing."""
    ended = report["requests"]["total"]
    return table_of(
        "Abnormal requests",
        report["abnormal"]["kinds"],
        written(text, "outcome", "stage", "reason"),
        written(number, "requests:count"),
        written(lambda count: share(count / ended), "of all:count"),
        left=3,
        note=f"{number(report['abnormal']['count'])} of {plural(ended, 'request')} did not complete",
    )


def abnormal_requests(report: Document, limit: int) -> Table:
    """The first of them, one by one."""
    shown = report["abnormal"]["requests"][:limit]
    more = report["abnormal"]["count"] - len(shown)
    return table_of(
        "… one by one",
        shown,
        written(_brief(20), "request"),
        written(text, "trace:trace_id", "outcome", "stage", "reason"),
        written(number, "tokens out:output_tokens"),
        written(seconds, "after:e2e"),
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
    return table_of(
        "Stages of completed requests",
        [row for row in told["rows"] if row["count"]],
        written(str, "stage"),
        written(share, "mean share:mean_share"),
        written(seconds, "mean", *FIGURES, "max"),
        written(number, "requests:count"),
        note=note,
    )


LATENCY_NAMES: Final = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "e2e_completed": "E2E of completed",
    "e2e": "E2E of all",
    "itl": "ITL",
    "itl_p50": "ITL p50 per request",
    "itl_p95": "ITL p95 per request",
    "itl_p99": "ITL p99 per request",
    "itl_max": "ITL max per request",
}


def latency(report: Document) -> Table:
    """What users waited for."""
    told = {**report["latency"], **report["latency"]["itl_within_requests"]}
    rows = [
        {**told[key], "name": name, "samples": plural(told[key]["count"], "gap" if key == "itl" else "request")}
        for key, name in LATENCY_NAMES.items()
        if told[key]["count"]
    ]
    return table_of(
        "User latency",
        rows,
        written(str, "latency:name"),
        written(seconds, "mean", *FIGURES, "max"),
        written(str, "samples"),
        note="each over the requests that have it; quantiles exact",
    )


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
    return table_of(
        title,
        found,
        written(_brief(40), f"{column}:name"),
        written(number, "requests:total"),
        written(share, "success:success_rate"),
        written(_p50_p95, f"TTFT {PAIR}:ttft", f"TPOT {PAIR}:tpot", f"E2E {PAIR}:e2e_completed"),
        written(_top, "bottleneck:bottlenecks"),
        written(str, "arrivals"),
        note=f"success is of those that ended, E2E of those that completed; {IN_BRACKETS}",
        wide=frozenset({"success", "bottleneck", "arrivals"}),
    )


PAIR: Final = "p50 / p95"
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
    return table_of(
        "Parts of requests",
        report["roles"],
        written(text, "role:name"),
        written(number, "spans:total"),
        written(_p50_p95, *(f"{name.replace('_', ' ')} {PAIR}:{name}" for name in columns)),
        note=f"halves and parts of requests; they count in nothing above; {IN_BRACKETS}",
    )


def startup(report: Document) -> Table:
    """The cold start."""
    return table_of(
        "Cold start",
        report["startup"]["phases"],
        written(text, "phase"),
        written(seconds, "mean", "longest"),
        written(number, "times:count"),
        note=", ".join(text(f"{key} {value}") for key, value in report["startup"]["launch"].items()),
    )


def resources(report: Document) -> Table:
    """Memory, cache and device, where recorded."""
    columns = written(str, "gauge:name"), written(text, "of:labels"), written(number, "mean", "peak", "readings:count")
    return table_of("Resources", report["resources"], *columns, left=2)


def trouble(report: Mapping[str, Any]) -> Table:
    """What was not read, and why."""
    read = report["read"]
    return table_of(
        "What was not read",
        report["trouble"],
        written(number, "how many:count"),
        written(str, "what:meaning"),
        written(lambda places: shorten(printable("; ".join(places[:2])), 90), "where, at first:places"),
        left=3,
        note=f"read: {plural(read.get('spans', 0), 'span')} in {plural(read.get('messages', 0), 'message')}",
    )


def beside(report: Document) -> Table:
    """What the sources contain besides requests; other spans in a trace are normal."""
    columns = written(number, "how many:count"), written(str, "what:meaning")
    return table_of("Beside the requests", report["beside"], *columns, left=2)


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
    return table_of(
        "Requests that others waited for",
        report["interference"]["culprits"],
        written(_brief(20), "request"),
        written(str, "trace:trace_id"),
        written(seconds, "held others up:time"),
        written(number, "requests"),
        left=2,
    )
