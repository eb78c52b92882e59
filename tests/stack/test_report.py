"""What ``otel-lifecycle report`` says of a run is what Prometheus says of it, and what its processes said themselves.

Two replicas of a service, and two services more, send OTLP to a Collector on collector.yaml.  The rules of Prometheus
have the windows that they have in the field.  Traces are written down before the sampler; what it keeps is in Jaeger.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import pytest

from otel_lifecycle import semconv
from otel_lifecycle._table.errors import UNUSABLE
from tests.stack.backends import eventually
from tests.stack.conftest import Stack
from tests.stack.figures import (
    BY_OUTCOME,
    GROUP,
    LATENCIES,
    REFUSED,
    STEADY,
    WHOLE,
    Figure,
    Labels,
    Total,
    bounds,
    label,
    objective,
    prometheus_name,
    told,
)
from tests.stack.played import Replica, Run, Samples, played, ran, reported

HELD: Final = 2
REPLICAS: Final = {
    "all-1": Replica(service="all", load="everything", seed=1, held=HELD),
    "all-2": Replica(service="all", load="everything", seed=2, held=HELD),
    "steady-1": Replica(service="steady", load="steady", seed=3),
    "half-1": Replica(service="half", load="steady", seed=4, settings={"OTEL_LIFECYCLE_SAMPLER": "0.5"}),
}
ALL: Final = {"job": "all"}
WINDOW_S: Final = 300
"""That of the recording rules."""
QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
MICROSECOND: Final = 1e-6
"""What a token's offset on a span is cut to; so it is the most that a mean of gaps can be off."""


def close(value: float | None) -> Any:
    """Return what a figure must equal: floats are added up in another order elsewhere."""
    return value if value is None else pytest.approx(value, rel=1e-9)


@pytest.fixture(scope="module")
def run(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run in which everything happened, and has ended."""
    with played(stack, tmp_path_factory.mktemp("report"), REPLICAS) as run:
        yield run


# ------------------------------------------------------------------------------------- Prometheus and processes


def test_prometheus_has_every_series_of_every_process(run: Run) -> None:
    """Each value, count, sum and bucket that the processes' own metrics end with, under the same labels; no more."""
    said: Samples = {}
    for statement in run.said.values():
        for point in statement["points"]:
            metric = next(metric for metric in semconv.METRICS if metric.name == point["metric"])
            labels = {name.replace(".", "_"): label(value) for name, value in point["labels"].items()}
            for part, value, more in numbers(point):
                said[frozenset({**labels, **more, "__name__": prometheus_name(metric, part)}.items())] = value
    # How old the oldest request is ends with the requests, and every reading of the cache is another.
    gauges = {"inference_oldest_request_age_seconds", "inference_cache_usage_ratio"}
    asked = run.ask(f'{{__name__=~"(inference|gen_ai)_.*", __name__!~"{"|".join(gauges)}"}}')
    found = {
        frozenset((name, str(float(value)) if name == "le" else value) for name, value in labels): value
        for labels, value in asked.items()
    }
    assert found == {labels: close(value) for labels, value in said.items() if dict(labels)["__name__"] not in gauges}
    assert len(found) > 1000


def numbers(point: Mapping[str, Any]) -> Iterator[tuple[str, float, dict[str, str]]]:
    """Yield part, number and further labels of each series that a point becomes in Prometheus."""
    if "value" in point:
        yield "value", point["value"], {}
        return
    yield "count", point["count"], {}
    yield "sum", point["sum"], {}
    edges = [*map(float, point["explicit_bounds"]), float("inf")]
    for edge, samples in zip(edges, accumulate(point["bucket_counts"]), strict=True):
        yield "bucket", samples, {"le": str(edge)}


# ------------------------------------------------------------------------------------------------- all the three


@pytest.mark.parametrize("path", WHOLE)
def test_report_prometheus_and_processes_agree(run: Run, path: str) -> None:
    """On a figure of the whole run, over both replicas and all models."""
    asked = run.asked(WHOLE[path], ALL)
    assert asked
    assert run.stated(WHOLE[path], ALL) == pytest.approx(asked, rel=1e-9)
    error = MICROSECOND if path == "latency/itl/mean" else 0.0
    assert told(run.report("all"), path) == pytest.approx(asked, rel=1e-9, abs=error)


@pytest.mark.parametrize(
    ("key", "attribute", "rows", "groups"),
    [
        ("model", semconv.GEN_AI_REQUEST_MODEL, GROUP, {"smollm2", "qwen3", "bge", "best-of"}),
        ("service.instance.id", "instance", GROUP, {"all-1", "all-2"}),
        ("outcome", semconv.OUTCOME, BY_OUTCOME, set(semconv.OUTCOMES)),
    ],
    ids=["model", "replica", "outcome"],
)
def test_they_agree_on_every_group(
    run: Run, key: str, attribute: str, rows: Mapping[str, Figure], groups: set[str]
) -> None:
    """By model, by replica and by outcome."""
    parts = run.report("all", "--group-by", key)["groups"]
    assert {part["name"] for part in parts} == groups
    for part in parts:
        where = {**ALL, attribute: part["name"]}
        asked = {path: close(run.asked(figure, where)) for path, figure in rows.items()}
        assert {path: run.stated(figure, where) for path, figure in rows.items()} == asked
        assert {path: told(part, path) for path in rows} == asked


def edges(run: Run, path: str, where: Labels, q: str) -> tuple[float, float, float]:
    """Return between which edges a quantile must lie, and what Prometheus says it is."""
    figure = {**WHOLE, **STEADY}[f"{path}/count"]
    assert isinstance(figure, Total)
    buckets = f"sum by (le) ({figure.selector(where, 'bucket')})"
    return (
        *bounds(run.buckets(figure, where), QUANTILES[q]),
        run.total(f"histogram_quantile({QUANTILES[q]}, {buckets})"),
    )


@pytest.mark.parametrize("q", QUANTILES)
@pytest.mark.parametrize("name", LATENCIES)
def test_quantiles_lie_between_the_same_edges(run: Run, name: str, q: str) -> None:
    """The report's is of the samples, Prometheus' of a bucket: the edges are those between which the sample lies."""
    low, high, asked = edges(run, f"latency/{name}", ALL, q)
    assert low <= asked <= high
    assert low <= told(run.report("all"), f"latency/{name}/{q}") <= high


@pytest.mark.parametrize("q", QUANTILES)
def test_quantiles_of_gaps_lie_between_the_same_edges(run: Run, q: str) -> None:
    """The report has every gap, the histogram the bucket it is in."""
    low, high, asked = edges(run, "latency/itl", ALL, q)
    assert low <= asked <= high
    assert low <= told(run.report("all"), f"latency/itl/{q}") <= high


def test_where_the_others_ended(run: Run) -> None:
    """The report's kinds of abnormal ends by outcome and stage, and the failed ones by what failed."""
    stages: dict[tuple[str, str], float] = {}
    failed: dict[str, float] = {}
    for kind in run.report("all")["abnormal"]["kinds"]:
        key = kind["outcome"], kind["stage"].replace("-", "")
        stages[key] = stages.get(key, 0) + kind["count"]
        if kind["outcome"] == "failed":
            failed[kind["reason"]] = failed.get(kind["reason"], 0) + kind["count"]
    live = 'job="all", inference_traffic=""'
    others = f'inference_requests_total{{{live}, inference_outcome!="completed"}}'
    found = run.ask(f"sum by (inference_outcome, inference_failure_stage) ({others})")
    assert stages == {
        (dict(labels)["inference_outcome"], dict(labels).get("inference_failure_stage", "")): value
        for labels, value in found.items()
    }
    assert failed == run.by("error_type", f'inference_requests_total{{{live}, inference_outcome="failed"}}')
    assert failed.keys() == {"queue_full", "rate_limited", "out_of_memory", "ValueError"}


def test_stage_times_agree_where_every_request_completed(run: Run) -> None:
    """The report has those of completed requests with every boundary, Prometheus of every stage that finished."""
    where = {"job": "steady"}
    asked = {path: run.asked(figure, where) for path, figure in STEADY.items()}
    assert {path: run.stated(figure, where) for path, figure in STEADY.items()} == pytest.approx(asked, rel=1e-9)
    assert {path: told(run.report("steady"), path) for path in STEADY} == pytest.approx(asked, rel=1e-9)
    seconds = {row["stage"]: row["mean"] * row["count"] for row in run.report("steady")["stages"]["rows"]}
    assert run.by("inference_stage", 'inference:stage:ratio5m{job="steady"}') == pytest.approx(
        {stage: value / sum(seconds.values()) for stage, value in seconds.items()}, rel=1e-9
    )


@pytest.mark.parametrize("stage", ["queue", "preprocessing", "prefill", "decode"])
def test_quantiles_of_stages_lie_between_the_same_edges(run: Run, stage: str) -> None:
    """As the rules record them."""
    for q in QUANTILES:
        low, high, _ = edges(run, f"stages/rows/{stage}", {"job": "steady"}, q)
        assert low <= run.total(f'inference:stage_seconds:{q}{{job="steady", inference_stage="{stage}"}}') <= high
        assert low <= told(run.report("steady"), f"stages/rows/{stage}/{q}") <= high


def test_nothing_is_active_after_the_end(run: Run) -> None:
    """What was held open is 0 in Prometheus once it has ended, and cancelled in the report."""
    assert run.held == {"queue": 2 * HELD}
    for series in ('inference_active_requests{job="all"}', 'inference:active_requests:sum{job="all"}'):
        assert set(run.ask(series).values()) == {0}
    kinds = run.report("all")["abnormal"]["kinds"]
    assert sum(kind["count"] for kind in kinds if kind["reason"] == "shutdown") == 2 * HELD


def test_no_request_is_old_after_the_end(run: Run) -> None:
    """Where nothing is active, no rule says how old the oldest is."""
    assert run.ask('inference:oldest_request_age_seconds:max{job="all"}') == {}


def test_readings_of_a_gauge_agree(run: Run) -> None:
    """Their number, their peak and their mean."""
    (gauge,) = run.report("all")["resources"]
    readings = f'inference_cache_usage_ratio{{job="all"}}[{WINDOW_S}s]'
    count = run.total(f"count_over_time({readings})")
    assert (gauge["count"], gauge["peak"]) == (count, run.total(f"max(max_over_time({readings}))"))
    assert gauge["mean"] == pytest.approx(run.total(f"sum_over_time({readings})") / count, rel=1e-9)


# ----------------------------------------------------------------------------------------------------- the rules

RULES: Final = {
    "inference:ended:increase5m": "terminated",
    "inference:completed:increase5m": "completed",
    "inference:success:ratio5m": "success_rate",
    "inference:ttft_count:increase5m": "ttft/count",
    "inference:ttft_seconds:mean": "ttft/mean",
    "inference:tpot_count:increase5m": "tpot/count",
    "inference:tpot_seconds:mean": "tpot/mean",
    "inference:e2e_all_seconds:mean": "e2e/mean",
    "inference:tokens:increase5m{inference_token_direction='input'}": "input_tokens/sum",
    "inference:tokens:increase5m{inference_token_direction='output'}": "output_tokens/sum",
    **{f"inference:requests:increase5m{{inference_outcome='{name}'}}": name for name in semconv.OUTCOMES},
    **{
        f"inference:bottleneck:increase5m{{inference_bottleneck='{name}'}}": f"bottlenecks/{name}"
        for name in ("queue", "preprocessing", "prefill", "decode", "mixed")
    },
}
"""What is recorded for each model -> what the report says of that group."""


def of_all(rule: str) -> str:
    """Return the series of a rule that are of the service ``all``."""
    return rule.replace("}", ", job='all'}") if "}" in rule else rule + "{job='all'}"


@pytest.mark.parametrize("rule", RULES)
def test_rules_agree_on_every_model(run: Run, rule: str) -> None:
    """As they stand, over the five minutes in which the whole run lies."""
    groups = run.report("all", "--group-by", "model")["groups"]
    expected = {group["name"]: value for group in groups if (value := told(group, RULES[rule]))}
    assert run.by("gen_ai_request_model", of_all(rule)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("q", QUANTILES)
@pytest.mark.parametrize(("name", "rule"), [("ttft", "ttft"), ("tpot", "tpot"), ("e2e", "e2e_all")])
def test_quantiles_of_rules_lie_between_the_same_edges(run: Run, name: str, rule: str, q: str) -> None:
    """Of every model that has any."""
    recorded = run.by("gen_ai_request_model", of_all(f"inference:{rule}_seconds:{q}"))
    groups = run.report("all", "--group-by", "model")["groups"]
    found = {group["name"]: group[name][q] for group in groups if group[name]["count"]}
    assert recorded.keys() == found.keys()
    for model, value in found.items():
        low, high, _ = edges(run, f"latency/{name}", {**ALL, semconv.GEN_AI_REQUEST_MODEL: model}, q)
        assert low <= recorded[model] <= high
        assert low <= value <= high


def test_rules_agree_on_what_the_report_has_of_the_whole_only(run: Run) -> None:
    """Rates per second over the rules' own window, goodput, violations and preemptions."""
    document = run.report("all", "--from", str(run.at - WINDOW_S), "--to", str(run.at))
    output = document["output"]
    judged = "inference:slo_judged:increase5m{inference_slo_objective='all'}"
    missed = "inference:slo_missed:increase5m{inference_slo_objective='all'}"
    recorded = {
        "request_throughput": run.total(of_all("inference:completed:rate5m")),
        "token_throughput": run.total(of_all("inference:tokens:rate5m{inference_token_direction='output'}")),
        "goodput_throughput": run.total(of_all("inference:goodput:rate5m")),
        "rejected": run.total(of_all(f"inference:requests:increase5m{{error_type=~'{REFUSED}'}}")),
        "slo_judged": run.total(of_all(judged)),
        "goodput": 1 - run.total(of_all(missed)) / run.total(of_all(judged)),
    }
    assert recorded == pytest.approx({name: output[name] for name in recorded}, rel=1e-9)
    breaches = run.by("inference_violation_kind", of_all("inference:violations:increase5m"))
    assert output["breaches"] == {kind: count for kind, count in breaches.items() if kind != "event_after_terminal"}
    assert document["stages"]["preemptions"] == run.total(of_all("inference:preemptions:increase5m"))


def test_another_window_has_nothing_of_the_run(run: Run) -> None:
    """Neither of its requests nor of what only its metrics tell; the exit code says so, too."""
    done = ran(*run.files("all"), "--from", str(run.at), "--to", str(run.at + WINDOW_S))
    assert done.returncode == UNUSABLE
    assert "nothing to report: no request in" in done.stderr
    document = json.loads(done.stdout)
    counts = ["requests/total", "latency/itl/count", "output/wasted_tokens"]
    assert {path: told(document, path) for path in counts} == dict.fromkeys(counts, 0)
    assert (document["output"]["cancel_lag"], document["resources"]) == (None, [])


# --------------------------------------------------------------------------------------- what they cannot agree on


def test_what_comes_after_the_end_is_in_the_metrics_alone(run: Run) -> None:
    """A span that has gone out bears no violation any more: of those the report knows the waste only."""
    live = 'job="all", inference_traffic="", inference_violation_kind="event_after_terminal"'
    late = run.total(f"inference_transition_violations_total{{{live}}}")
    assert late == run.total('inference_cancel_lag_seconds_count{job="all", inference_traffic=""}') > 0
    assert "event_after_terminal" not in run.report("all")["output"]["breaches"]


def test_the_share_of_an_outcome_is_of_the_incomplete_too(run: Run) -> None:
    """The rule's shares add up to 1 over everything that ended; the report's rates leave the incomplete out."""
    share = run.by("gen_ai_request_model", of_all("inference:outcome:ratio5m{inference_outcome='timed_out'}"))
    groups = run.report("all", "--group-by", "model")["groups"]
    expected = {group["name"]: group["timed_out"] / group["total"] for group in groups if group["timed_out"]}
    assert share == pytest.approx(expected, rel=1e-9)


def test_the_report_knows_the_sampled_requests_only(run: Run) -> None:
    """Prometheus and the process count every request, whatever the sampler of the process decides."""
    sampled = run.said["half-1"]["sampled"]
    where = {"job": "half"}
    assert run.report("half")["requests"]["total"] == sampled
    assert run.asked(WHOLE["requests/total"], where) == run.stated(WHOLE["requests/total"], where) == 40
    assert 0 < sampled < 40


def test_behind_the_tail_sampler_what_it_keeps_agrees(run: Run, stack: Stack) -> None:
    """From Jaeger the report has all that went wrong and too little of what went well: its rates say nothing."""
    wrong = ["failed", "timed_out", "incomplete"]
    kept = [*(f"requests/{outcome}" for outcome in wrong), "output/rejected", "stages/bottlenecks/mixed"]
    kept += [path for path in WHOLE if path.startswith("output/breaches/")]
    expected = {path: run.asked(WHOLE[path], ALL) for path in kept}

    def arrived() -> Any:
        document = reported(f"{stack.jaeger.base}?service=all&lookback=3600")
        assert {path: told(document, path) for path in kept} == expected
        return document

    document = eventually(arrived)
    missed = document["output"]["slo_judged"] * (1 - document["output"]["goodput"])
    assert missed == pytest.approx(run.asked(objective("false"), ALL))
    for path in ("requests/completed", "output/success_rate", "output/goodput"):
        assert told(document, path) < (run.asked(WHOLE[path], ALL) or 0)


def test_a_request_less_is_seen(run: Run, tmp_path: Path) -> None:
    """Without one completed request in the file, every figure that it is part of differs from Prometheus'."""
    traces, metrics = run.files("all")
    lost = run.report("all")["slowest"][0]["span_id"]
    less = tmp_path / "less.json"
    with less.open("w") as file:
        for line in Path(traces).read_text().splitlines():
            message = json.loads(line)
            for resource in message["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    scope["spans"] = [span for span in scope["spans"] if span["spanId"] != lost]
            file.write(json.dumps(message) + "\n")
    document = reported(str(less), metrics)
    differs = {path for path, figure in WHOLE.items() if told(document, path) != close(run.asked(figure, ALL))}
    assert differs >= {
        *("requests/total", "requests/terminated", "requests/completed", "stages/completed", "stages/bottleneck_count"),
        *("output/success_rate", "output/rejection_rate", "output/timeout_rate", "output/slo_judged", "output/goodput"),
        *("output/output_tokens", "conditions/measured/input_tokens/sum"),
        *(f"latency/{name}/{part}" for name in ("ttft", "tpot", "e2e", "itl") for part in ("count", "mean")),
    }
