"""Every query of the dashboard, on the real Prometheus: it parses, and after a load it returns data."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

import pytest
from opentelemetry.metrics import CallbackOptions, Observation

import otel_lifecycle as lifecycle
from otel_lifecycle import semconv
from tests.stack import overlay
from tests.stack.backends import NotYet, eventually
from tests.stack.conftest import Stack
from tests.stack.load import Script, mix
from tests.stack.programs import CONFIG

JOB: Final = "dashboard"
BOARD: Final = json.loads((CONFIG / "grafana" / "dashboards" / "inference.json").read_text())
# Folded rows keep their panels within them.
PANELS: Final = [panel for each in BOARD["panels"] for panel in (each, *each.get("panels", []))]
# The source's timeInterval of 60 s makes $__rate_interval four minutes, here eight seconds.
VARIABLES: Final = {"$job": JOB, "$environment": ".*", "$model": ".*", "$__rate_interval": "8s"}
LATENCY: Final = {"TTFT", "TPOT", "ITL", "E2E, completed"}
WARM_UP: Final = Script(prefill=50.0)


NATIVE: Final = "N"
"""The query of a heatmap for native histograms."""


def queries(*, exemplars: bool = False, job: str = JOB, native: bool = False) -> list[tuple[str, str]]:
    """Return where each query of data (of exemplars, of native ones) stands and what it asks, variables filled in."""
    found = []
    for panel in PANELS:
        for target in panel.get("targets", []):
            expr = target["expr"]
            for name, value in {**VARIABLES, "$job": job}.items():
                expr = expr.replace(name, value)
            if target.get("exemplar", False) is exemplars and (target["refId"] == NATIVE) is native:
                found.append((f"{panel['title']}/{panel['type']}/{target['refId']}", expr))
    return found


def in_the_row(title: str) -> bool:
    """Whether a query belongs to the latency row."""
    return title.split("/", maxsplit=1)[0] in LATENCY


def data(stack: Stack, title: str, expr: str) -> list[float]:
    """Return the numbers a panel would draw of the last minute; NotYet if there is none."""
    series = stack.prometheus.series(overlay.scaled(expr).replace("[266ms]", "[8s]"), 60)
    values = [float(value) for each in series for _, value in each["values"] if value != "NaN"]
    if not values:
        raise NotYet(f"{title} has no data: {expr}")
    return values


@pytest.fixture(scope="module")
def played(stack: Stack) -> Iterator[None]:
    """Every kind of request, in two helpings so that rates have two samples; and the gauges of the machine."""
    with stack.server(JOB, slo=lifecycle.Slo(ttft=0.5, tpot=0.05)) as server:
        meter = server.meter_provider.get_meter("dashboard")
        for metric in (semconv.CACHE_USAGE, semconv.MEMORY_USED, semconv.DEVICE_UTILIZATION):
            meter.create_observable_gauge(metric.name, [_half], unit=metric.unit)
        server.play(Script(end="leave", where="decode"))
        for seed in range(4):
            server.play_all(mix(seed, 40))
            server.play(Script(illegal=True))
            server.play(Script(end="cancel", late=5))
            server.play(WARM_UP, traffic="warmup")
            with lifecycle.engine_step(prefill=[server.play(Script(end="leave", where="decode"))]):
                pass
            server.flush()
            time.sleep(1)

        def compared() -> None:
            # The hour before is the last thing to be there: ten short seconds later.
            stack.prometheus.value(f'inference:bottleneck:usual{{job="{JOB}", inference_bottleneck="mixed"}}')

        eventually(compared)
        yield


def _half(options: CallbackOptions) -> list[Observation]:
    return [Observation(0.5)]


@pytest.mark.parametrize(("title", "expr"), queries(), ids=[title for title, _ in queries()])
def test_every_query_returns_data(stack: Stack, played: None, title: str, expr: str) -> None:
    """As a panel asks it, over the last minute; some sample of it is a number."""
    assert eventually(lambda: data(stack, title, expr), timeout=15)


@pytest.mark.parametrize(
    ("title", "expr"), queries(exemplars=True), ids=[title for title, _ in queries(exemplars=True)]
)
def test_every_query_of_exemplars_returns_dots_and_no_data(stack: Stack, played: None, title: str, expr: str) -> None:
    """The recorded series have no exemplars, so their panels ask the raw buckets, and for these alone."""
    assert eventually(lambda: stack.prometheus.exemplars(expr) or _none(title), timeout=15)
    assert stack.prometheus.query(expr) == {}


def _none(title: str) -> Any:
    raise NotYet(f"{title} has no exemplars")


def test_a_panel_of_completed_requests_leaves_out_the_rest(stack: Stack, played: None) -> None:
    """Each of its queries asks for that outcome, and the samples it counts are those of completed requests."""
    (panel,) = (each for each in PANELS if each["title"] == "E2E, completed")
    assert all('inference_outcome="completed"' in target["expr"] for target in panel["targets"])
    samples = next(expr for title, expr in queries() if title == "E2E, completed/timeseries/E")
    outcomes = f'sum by (inference_outcome) (inference:e2e_count:increase5m{{job="{JOB}"}})'

    def compared() -> None:
        shown, by_outcome = stack.prometheus.value(samples), stack.prometheus.by("inference_outcome", outcomes)
        assert shown == by_outcome["completed"] < sum(by_outcome.values())

    with stack.server(JOB) as server:
        server.play_all(mix(5, 40))
    eventually(compared)


@pytest.mark.parametrize("seconds", [0, 12], ids=["a burst", "an export a minute"])
def test_the_latency_row_is_full(stack: Stack, seconds: float) -> None:
    """Of one burst, of which each series has one value, and at the SDK's interval of 60 s (here 2 s)."""
    job = f"row-{seconds}"
    with stack.server(job, interval_ms=2000 if seconds else 3_600_000) as server:
        for _ in range(max(1, int(seconds))):
            server.play_all(mix(6, 20))
            time.sleep(min(1, seconds))
    for title, expr in queries(job=job):
        if in_the_row(title):
            eventually(partial(data, stack, title, expr))


def test_two_services_have_two_legends() -> None:
    """A query that keeps service and model apart names both in its legend."""
    for panel in PANELS:
        for target in panel.get("targets", []):
            expr = target["expr"]
            if expr.startswith(("inference:", "sum by (job, gen_ai_request_model)")):
                assert "{{job}} {{gen_ai_request_model}}" in target["legendFormat"], panel["title"]


def test_a_service_without_violations_shows_0(stack: Stack) -> None:
    """No violation has no series; the figure is 0 all the same, of a service that is there."""
    job = "without-violations"
    (expr,) = (expr for title, expr in queries(job=job) if title.startswith("Violations/"))
    with stack.server(job) as server:
        server.play_all([Script()] * 3)
        server.flush()
        assert eventually(lambda: stack.prometheus.value(expr)) == 0


def test_the_annotations_and_the_variables_are_queries_of_prometheus(stack: Stack, played: None) -> None:
    """The firing alerts of the service, and the label values the pickers offer."""
    (annotation,) = BOARD["annotations"]["list"]
    stack.prometheus.query(annotation["expr"].replace("$job", JOB).replace("$environment", ".*"))
    offered = {entry["name"]: entry["query"] for entry in BOARD["templating"]["list"]}
    picked = '{__name__=~"inference_active_requests|inference_requests_total"}'
    assert offered["job"]["query"] == f"label_values({picked}, job)"
    assert JOB in stack.prometheus.by("job", f"count by (job) ({picked})")


def test_a_service_that_jams_from_its_start_can_be_picked(stack: Stack) -> None:
    """Nothing of it has ever ended; the gauge of active requests names it all the same."""
    (entry,) = (entry for entry in BOARD["templating"]["list"] if entry["name"] == "job")
    selector = entry["query"]["query"].removeprefix("label_values(").removesuffix(", job)")
    with stack.server("jams-from-its-start") as server:
        server.play(Script(end="leave", where="queue"))

        def offered() -> None:
            assert "jams-from-its-start" in stack.prometheus.by("job", f"count by (job) ({selector})")

        eventually(offered)


def test_warm_up_is_left_out(stack: Stack, played: None) -> None:
    """The TTFT panel knows nothing of a warm-up of 50 s that the raw series have (C54)."""
    (expr,) = (expr for title, expr in queries() if title == "TTFT/timeseries/C")
    raw = f'inference_time_to_first_token_seconds_bucket{{job="{JOB}", inference_traffic="warmup"}}'
    assert max(data(stack, "TTFT", expr)) < 5
    assert stack.prometheus.value(f"histogram_quantile(0.5, sum by (le) ({raw}))") > 40


def test_every_panel_has_a_unit() -> None:
    """A number without one says nothing, and `short` is not one."""
    drawn = [panel for panel in PANELS if panel["type"] != "row"]
    assert [p["title"] for p in drawn if p["fieldConfig"]["defaults"].get("unit") in (None, "", "short")] == []


def test_links_lead_to_sections_and_to_searches_that_are_documented() -> None:
    """Each runbook link names a heading of the README, and each search asks for one tag of a request span."""
    text = (CONFIG / "README.md").read_text()
    headings = {line.removeprefix("### ").lower() for line in text.splitlines() if line.startswith("### ")}
    links = [link["url"] for panel in PANELS for link in panel.get("links", [])]
    runbooks = [url.removeprefix("${runbooks}#") for url in links if url.startswith("${runbooks}#")]
    assert len(runbooks) > 10
    assert set(runbooks) <= headings
    known = {value for value in vars(semconv).values() if isinstance(value, str)}
    for url in links:
        if url.startswith("/explore"):
            panes = json.loads(unquote(url.partition("&panes=")[2]))
            (query,) = panes["a"]["queries"]
            name, _, value = query["tags"].partition("=")
            assert value
            assert name in known or name.removesuffix("ttft") in known


def test_every_panel_that_an_alert_or_a_runbook_names_is_there() -> None:
    """Those named in the summaries of the rules, and in italics in README.md."""
    rules = "".join(path.read_text() for path in (CONFIG / "rules").glob("*.yaml"))
    named = set(re.findall(r"the panel ([A-Z][\w ]+?)[.;]", rules))
    named |= set(re.findall(r"panel \*([^*]+)\*", (CONFIG / "README.md").read_text().replace("\n", " ")))
    assert len(named) > 2
    assert named - {panel["title"] for panel in PANELS} == set()


def test_only_what_is_looked_at_first_is_unfolded() -> None:
    """The state of now and its reasons; a folded row asks Prometheus nothing."""
    rows = [panel for panel in BOARD["panels"] if panel["type"] == "row"]
    assert [row["title"] for row in rows if not row["collapsed"]] == ["Now", "Why: stages and bottlenecks"]
    assert all(row["panels"] for row in rows if row["collapsed"])


def test_no_data_source_is_hard_coded() -> None:
    """Every one is a variable of the dashboard, so it can be chosen."""
    sources = set(re.findall(r'"uid": "([^"]+)"', json.dumps(BOARD["panels"]))) - {"-- Grafana --"}
    offered = {entry["name"] for entry in BOARD["templating"]["list"] if entry["type"] == "datasource"}
    assert {source.strip("${}") for source in sources} <= offered
