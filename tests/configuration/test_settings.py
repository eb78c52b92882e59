"""Every setting: an argument beats the environment, the environment beats the default, and nonsense is refused."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from otel_lifecycle import Slo
from otel_lifecycle._configuration.settings import read_settings
from otel_lifecycle.errors import ConfigurationError

# name, an argument, what it is read as; a variable's text, what it is read as; the default
SETTINGS = [
    ("service_name", "a", "a", "b", "b", None),
    ("endpoint", "http://a:1", "http://a:1", "http://b:2", "http://b:2", None),
    ("metric_interval", 3, 3.0, "2.5", 2.5, 15.0),
    ("sampler", ALWAYS_OFF, ALWAYS_OFF, "0.25", 0.25, None),
    ("dominance_threshold", 0.6, 0.6, "0.7", 0.7, 0.45),
    ("strict", True, True, "true", True, False),
    ("token_times", True, True, "1", True, False),
    ("compat", "vllm", "vllm", "vllm", "vllm", None),
    ("record_exceptions", True, True, "on", True, False),
    ("interference", False, False, "false", False, True),
    ("culprit_ids", False, False, "off", False, True),
    ("engine_shared", True, True, "true", True, False),
    ("tenant_metrics", True, True, "true", True, False),
    ("gen_ai_metrics", False, False, "false", False, True),
    ("gen_ai_usage", False, False, "false", False, True),
    ("native_histograms", True, True, "true", True, False),
    ("handle_sigterm", False, False, "false", False, True),
    ("shutdown_timeout", 1, 1.0, "2", 2.0, 10.0),
    ("slo", Slo(ttft=1), Slo(ttft=1), None, None, None),
]


@pytest.mark.parametrize(("name", "argument", "read", "text", "parsed", "default"), SETTINGS, ids=lambda v: str(v)[:20])
def test_argument_beats_environment_beats_default(
    name: str, argument: Any, read: Any, text: str | None, parsed: Any, default: Any
) -> None:
    """Each setting is looked up in that order."""
    environ = {} if text is None else {f"OTEL_LIFECYCLE_{name.upper()}": text}
    assert getattr(read_settings({}, {}), name) == default
    assert getattr(read_settings({}, environ), name) == parsed
    assert getattr(read_settings({name: argument}, environ), name) == read


def test_false_argument_beats_environment() -> None:
    """An argument of False is an argument."""
    assert read_settings({"strict": False}, {"OTEL_LIFECYCLE_STRICT": "true"}).strict is False


def test_slo_from_the_environment() -> None:
    """Each objective has a variable; those that are not set are not objectives."""
    environ = {"OTEL_LIFECYCLE_SLO_TTFT": "0.5", "OTEL_LIFECYCLE_SLO_E2E": "30"}
    assert read_settings({}, environ).slo == Slo(ttft=0.5, e2e=30)


@pytest.mark.parametrize(
    ("arguments", "environ", "protocols"),
    [
        ({}, {}, ("http/protobuf", "http/protobuf")),
        ({"protocol": "grpc"}, {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, ("grpc", "grpc")),
        ({}, {"OTEL_LIFECYCLE_PROTOCOL": "grpc"}, ("grpc", "grpc")),
        ({}, {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ("grpc", "grpc")),
        ({}, {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, ("grpc", "http/protobuf")),
        ({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317"}, ("grpc", "grpc")),
        ({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4317"}, ("grpc", "grpc")),
        ({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, ("http/protobuf", "http/protobuf")),
        ({"endpoint": "http://collector:4317"}, {}, ("grpc", "grpc")),
        ({}, {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://collector:4317"}, ("http/protobuf", "grpc")),
    ],
)
def test_protocol(arguments: dict[str, Any], environ: dict[str, str], protocols: tuple[str, str]) -> None:
    """The protocol is as set, ours before OpenTelemetry's; unset, the port 4317 means gRPC."""
    read = read_settings(arguments, environ).protocols
    assert (read["traces"], read["metrics"]) == protocols


def test_standard_metric_interval() -> None:
    """OpenTelemetry's own variable, in milliseconds, stands before our default and behind our variable."""
    standard = {"OTEL_METRIC_EXPORT_INTERVAL": "5000"}
    assert read_settings({}, standard).metric_interval == 5.0
    assert read_settings({}, {**standard, "OTEL_LIFECYCLE_METRIC_INTERVAL": "7"}).metric_interval == 7.0


def test_a_signal_can_be_switched_off() -> None:
    """OTEL_TRACES_EXPORTER=none exports no spans; metrics stay."""
    assert read_settings({}, {"OTEL_TRACES_EXPORTER": "none"}).exporters == {
        "traces": (),
        "metrics": ("otlp",),
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("service_name", ""),
        ("service_name", 7),
        ("endpoint", "collector"),
        ("endpoint", "ftp://collector"),
        ("endpoint", "http://collector:port"),
        ("protocol", "http/json"),
        ("metric_interval", 0),
        ("metric_interval", float("nan")),
        ("metric_interval", "1"),
        ("metric_interval", True),
        ("sampler", 1.5),
        ("sampler", object()),
        ("slo", 0.5),
        ("dominance_threshold", 0),
        ("dominance_threshold", 1.01),
        ("dominance_threshold", float("nan")),
        ("dominance_threshold", "0.5"),
        ("strict", 1),
        ("token_times", "yes"),
        ("compat", "sglang"),
        ("record_exceptions", 0.0),
        ("interference", 1),
        ("engine_shared", "yes"),
        ("handle_sigterm", 1),
        ("shutdown_timeout", -1),
        ("resources", {"cache": lambda: 1}),
        ("resources", {"cache_usage": 1}),
        ("resources", [1]),
        ("resource_attributes", 5),
    ],
)
def test_argument_that_makes_no_sense(name: str, value: Any) -> None:
    """It is refused where it is set, by name, with the rule."""
    with pytest.raises(ConfigurationError, match=name.partition("_")[0]):
        read_settings({name: value}, {})


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_LIFECYCLE_SLO_TTTF", "1"),
        ("OTEL_LIFECYCLE_ENDPOINT", "collector"),
        ("OTEL_LIFECYCLE_PROTOCOL", "http"),
        ("OTEL_LIFECYCLE_METRIC_INTERVAL", "soon"),
        ("OTEL_LIFECYCLE_METRIC_INTERVAL", "inf"),
        ("OTEL_LIFECYCLE_SAMPLER", "half"),
        ("OTEL_LIFECYCLE_SAMPLER", "-0.1"),
        ("OTEL_LIFECYCLE_SLO_TTFT", "fast"),
        ("OTEL_LIFECYCLE_SLO_TTFT", "-1"),
        ("OTEL_LIFECYCLE_DOMINANCE_THRESHOLD", "45%"),
        ("OTEL_LIFECYCLE_DOMINANCE_THRESHOLD", "2"),
        ("OTEL_LIFECYCLE_STRICT", "maybe"),
        ("OTEL_LIFECYCLE_TOKEN_TIMES", "2"),
        ("OTEL_LIFECYCLE_COMPAT", "tgi"),
        ("OTEL_LIFECYCLE_SHUTDOWN_TIMEOUT", "never"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "often"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "0"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
    ],
)
def test_variable_that_makes_no_sense(variable: str, value: str) -> None:
    """The message names the variable, so that the reader of a log knows what to fix."""
    with pytest.raises(ConfigurationError, match=variable.removesuffix("TTFT")):
        read_settings({}, {variable: value})
