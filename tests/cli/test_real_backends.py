"""What a real Collector writes and a real Jaeger answers is read, and says the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_lifecycle._table.sources.reader import Reader
from otel_lifecycle._table.sources.spans import Span
from otel_lifecycle._table.sources.tally import ReadingTally
from tests.cli.live import serve, server
from tests.cli.running import Ran
from tests.stack import programs
from tests.stack.backends import NotYet, eventually
from tests.stack.programs import LOOPBACK, Running

pytestmark = pytest.mark.stack

REQUESTS = 400
BATCH = 400


def send(running: Running) -> None:
    """Serve requests whose telemetry goes to a program by the real exporter."""
    endpoint = f"http://{LOOPBACK}:{running.ports['grpc']}"
    with server(token_times=True) as process:
        for number in range(REQUESTS):
            tokens = [1.0 + 0.01 * step for step in range(1, 30 + number % 50)]
            end = ("cancel" if number % 40 == 0 else "complete", tokens[-1] + 0.1)
            serve(process, (0.2, 0.3, 1.0), tokens, end, start=number / 2, input_tokens=number)
        spans = OTLPSpanExporter(endpoint, insecure=True)
        # A rotated file refuses a batch that is larger than the 1 MB at which it is rotated.
        for first in range(0, len(process.spans), BATCH):
            assert spans.export(process.spans[first : first + BATCH]) is SpanExportResult.SUCCESS
        spans.shutdown()
        if running.name == "collector":
            metrics = OTLPMetricExporter(endpoint, insecure=True)
            data = process.reader.get_metrics_data()
            assert data is not None
            metrics.export(data)
            metrics.shutdown()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which a Collector wrote the requests, in every form it has."""
    folder = tmp_path_factory.mktemp("collector")
    (folder / "rotated").mkdir()
    config = Path(__file__).parent / "collector.yaml"
    running = programs.collector(folder, config, env={"SINK": str(folder)}).start()
    try:
        send(running)
    finally:
        running.stop()
    assert len(list((folder / "rotated").iterdir())) > 1
    return folder


def address(running: Running) -> str:
    """Return the source that asks a Jaeger for all of the requests."""
    base = f"http://{LOOPBACK}:{running.ports['query']}"
    return f"{base}?service=tiny-llm&start=1769999990000000&end=1770001000000000"


def all_there(running: Running) -> None:
    """Raise NotYet until Jaeger has written all that it took in: it answers before that."""
    found = sum(isinstance(item, Span) for item in Reader([address(running)], ReadingTally()))
    if found < REQUESTS:
        raise NotYet(f"{found} of {REQUESTS} requests")


@pytest.fixture(scope="module")
def jaeger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A Jaeger that has the requests."""
    running = programs.jaeger(tmp_path_factory.mktemp("jaeger")).start()
    try:
        send(running)
        eventually(lambda: all_there(running))
        yield running
    finally:
        running.stop()


def comparable(report: Any) -> dict[str, Any]:
    """Return a report without where it came from, and without what is in the metrics only."""
    left_out = {"sources", "read", "trouble", "diagnosis", "abnormal", "slowest", "warnings"}
    return {key: value for key, value in report.items() if key not in left_out}


@pytest.mark.parametrize("form", ["json_zstd", "proto", "proto_zstd", "rotated"])
def test_every_form_of_the_file_exporter_says_the_same(written: Path, cli: Callable[..., Ran], form: str) -> None:
    """As its JSON lines do."""
    plain, other = (cli("report", written / name, "--json").json for name in ("json", form))
    assert plain["requests"]["total"] == REQUESTS
    assert plain["requests"]["cancelled"] == REQUESTS / 40
    assert comparable(other) == comparable(plain)
    assert [item["kind"] for item in other["beside"]] == ["other_metrics"]


def test_jaeger_says_the_same(written: Path, jaeger: Running, cli: Callable[..., Ran]) -> None:
    """To the microsecond that it keeps."""
    files = cli("report", written / "json", "--json").json
    asked = cli("report", address(jaeger), "--json").json
    assert asked["requests"] == files["requests"]
    assert asked["stages"]["bottlenecks"] == files["stages"]["bottlenecks"]
    for name in ("ttft", "tpot", "e2e"):
        assert asked["latency"][name] == files["latency"][name]
    assert asked["latency"]["itl"]["count"] == files["latency"]["itl"]["count"]
    assert asked["window"]["seconds"] == pytest.approx(files["window"]["seconds"], abs=1e-5)


def test_one_trace_of_jaeger_is_viewed(jaeger: Running, cli: Callable[..., Ran]) -> None:
    """Found by its id in its answer."""
    trace = cli("report", address(jaeger), "--json").json["slowest"][0]["trace_id"]
    told = cli("view", f"http://{LOOPBACK}:{jaeger.ports['query']}/api/traces/{trace}", "--json").json
    names = [bar["name"] for bar in told["waterfall"]]
    assert names == ["chat smollm2", "queue", "preprocessing", "prefill", "decode"]
    assert len(told["tokens"]) == told["output_tokens"]
