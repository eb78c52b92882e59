"""One line about each setting, for the reference and the command line.  A test keeps it complete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

HELP: Final[Mapping[str, tuple[str, str]]] = {
    "service_name": ("OTEL_SERVICE_NAME", "`service.name` of the telemetry"),
    "endpoint": ("OTEL_EXPORTER_OTLP_ENDPOINT", "base URL of the Collector"),
    "protocol": (
        "OTEL_EXPORTER_OTLP_PROTOCOL; grpc where the port is 4317, else http/protobuf",
        "`grpc` or `http/protobuf`",
    ),
    "file": ("none", "path of a file of OTLP JSON lines; `{pid}` stands for the process"),
    "file_max_mb": ("100", "megabytes from which the file is put aside; five are kept"),
    "metric_interval": ("OTEL_METRIC_EXPORT_INTERVAL, else 15", "seconds between exports of metrics"),
    "sampler": ("OTEL_TRACES_SAMPLER", "share of traces to keep, in [0, 1]; metrics cover every request all the same"),
    "slo_ttft": ("none", "objective for the time to first token, in seconds"),
    "slo_tpot": ("none", "objective for the time per output token, in seconds"),
    "slo_e2e": ("none", "objective for the whole request, in seconds"),
    "dominance_threshold": ("0.45", "share from which a stage is the bottleneck, in (0, 1]"),
    "strict": ("false", "a violation raises at the call; for tests and development"),
    "token_times": ("false", "the offset of every token goes onto the span"),
    "compat": ("none", "`vllm`: adds that engine's `gen_ai.latency.*` attributes"),
    "record_exceptions": ("false", "messages and stacks of exceptions go onto spans, not their type alone"),
    "interference": ("true", "work out what held each request"),
    "culprit_ids": ("true", "span links carry the request id of the request they point to"),
    "engine_shared": ("false", "other processes feed the same engine: `idle` and the queue split are absent"),
    "tenant_metrics": ("false", "metrics carry `inference.request.tenant`: 64 tenants, then `_OTHER`"),
    "gen_ai_metrics": ("true", "the `gen_ai.server.*` metrics, whose figures the `inference.*` metrics have, too"),
    "gen_ai_usage": (
        "true",
        "the `gen_ai.usage.*` attributes of spans, which an instrumented client's span has, too",
    ),
    "native_histograms": ("false", "exponential histograms, which Prometheus keeps as native ones, instead of buckets"),
    "handle_sigterm": ("true", "send what is left before SIGTERM ends a process that has no handler for it"),
    "shutdown_timeout": ("10", "seconds that `shutdown()` and the interpreter's exit may take"),
}
"""Name of a setting -> its default, in words, and its meaning.  Its variable is OTEL_LIFECYCLE_<NAME>."""
