"""The figures of docs/operate/sizing.md, computed from what one replica really sends.

``python -m tests.sizing`` prints the tables of that page.  Assumptions are the constants below; the rest is counted.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.metrics import Histogram as Instrument
from opentelemetry.sdk.metrics.export import Histogram, InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation

from tests.support.telemetry import Telemetry

RATE: Final = 5
"""Requests a second of one replica."""
TOKENS: Final = 200
EXPORT_S: Final = 15
KEPT: Final = 0.15
"""Share of the traces that the sampler keeps: 10 % of the ordinary ones, and all that went wrong."""
ROOT_WAIT_S, LONG_WAIT_S, TRACE_BYTES, TRACES_HELD = 30, 660, 16 * 1024, 50_000
"""The values of the sampler, as in collector.yaml."""
SAMPLE_BYTES: Final = 1.5
"""On the disk of Prometheus, by its documentation (1 to 2)."""
STORED: Final = 3
"""Bytes that Badger takes for one byte of OTLP, index included; an assumption to check on your spans."""
GATEWAY_SPANS: Final = 10_000
"""Spans a second that a gateway of two cores takes; an assumption to check on your machines."""
READ_PER_S: Final = 700_000
"""Samples a second that the rule group reads on one core: 400,000 in 0.58 s, measured on a busy machine."""
REPLICAS: Final = (1, 100, 10_000)
_ENGINES: Final = count()
"""An engine for each request: which ones overlap would decide how many causes of waits there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """What one replica of one model sends: series, those that are buckets, and bytes and spans of a request."""

    series: int
    buckets: int
    spans: int
    span_bytes: int

    @property
    def read(self) -> int:
        """Samples that the rules read of it in one evaluation: five minutes twice, and an hour of all but buckets."""
        window, hour = 300 // EXPORT_S, 3600 // EXPORT_S
        return self.buckets * 2 * window + (self.series - self.buckets) * 2 * (window + hour)


def replica(**settings: Any) -> Replica:
    """Serve every kind of end and bottleneck, and count."""
    telemetry = Telemetry(**settings)
    kinds = [(slow, "complete", 4) for slow in ("admit", "input_ready", "first_token", "token", None)]
    kinds += [(None, end, until) for end in ("cancel", "timeout", "fail") for until in range(4)]
    for slow, end, until in kinds:
        _request(telemetry, slow, end, until)
    data = telemetry.reader.get_metrics_data()
    assert data is not None
    metrics = [metric for r in data.resource_metrics for scope in r.scope_metrics for metric in scope.metrics]
    histograms = [point for m in metrics if isinstance(m.data, Histogram) for point in m.data.data_points]
    plain = sum(len(list(m.data.data_points)) for m in metrics if not isinstance(m.data, Histogram))
    buckets = sum(len(point.bucket_counts) for point in histograms)
    first = telemetry.exporter.get_finished_spans()[:5]
    return Replica(
        # Of each histogram its buckets, the sum and the count.
        series=plain + buckets + 2 * len(histograms),
        buckets=buckets,
        spans=len(first),
        span_bytes=encode_spans(first).ByteSize(),
    )


def _request(telemetry: Telemetry, slow: str | None, end: str, until: int) -> None:
    at = time.time_ns() - 10**11
    request = telemetry.request(model="tiny", provider="sizing", engine=f"engine-{next(_ENGINES)}", arrived_at_ns=at)
    for mark in ("admit", "input_ready", "first_token")[:until]:
        at += 10**9 * (20 if mark == slow else 1)
        getattr(request, mark)(at_ns=at)
    for _ in range(TOKENS - 1 if until > 3 else 0):
        at += 10**8 if slow == "token" else 5 * 10**6
        request.token(at_ns=at)
    getattr(request, end)(at_ns=at)


def size(number: float) -> str:
    """Return bytes in the unit that a person would use."""
    units = ["B", "KB", "MB", "GB", "TB"]
    while number >= 995 and len(units) > 1:
        number /= 1000
        units.pop(0)
    # Two figures: more would change with the version of an exporter.
    return f"{round(number, 2 - len(str(int(number)))):g} {units[0]}"


def one_replica() -> list[str]:
    """Return the rows of the first table: one replica under each setting."""
    exponential = InMemoryMetricReader(preferred_aggregation={Instrument: ExponentialBucketHistogramAggregation()})
    rows = {
        "as it comes": replica(),
        "`gen_ai_metrics=false`": replica(gen_ai_metrics=False),
        "`native_histograms=true`": replica(reader=exponential),
    }
    return [f"| {name} | {row.series} | {row.buckets} | {row.read:,} |" for name, row in rows.items()]


def fleet() -> list[str]:
    """Return the rows of the second table: fleets of 1, 100 and 10,000 replicas."""
    one = replica()
    lines = []
    for replicas in REPLICAS:
        requests = replicas * RATE
        spans, traffic = requests * one.spans, requests * one.span_bytes
        series = replicas * one.series
        samples = series / EXPORT_S
        short, long = requests * ROOT_WAIT_S, requests * LONG_WAIT_S
        cells = (
            f"{replicas:,}",
            f"{requests:,}",
            f"{series:,}",
            f"{samples:,.0f}",
            size(samples * SAMPLE_BYTES * 86_400),
            f"{spans:,}",
            size(traffic),
            f"{size(short * TRACE_BYTES)} / {size(long * TRACE_BYTES)}",
            f"{max(1, -(-spans // GATEWAY_SPANS), -(-short // TRACES_HELD))}",
            size(traffic * KEPT * STORED * 86_400),
            f"{replicas * one.read / READ_PER_S:.1f} s",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    sys.stdout.write("\n".join([*one_replica(), "", *fleet()]) + "\n")
