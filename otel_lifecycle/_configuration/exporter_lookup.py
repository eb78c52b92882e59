"""The exporters that the settings name, made for this process.

``otlp`` is made here, because it depends on the endpoint and the protocol; every other name is looked up where the SDK
looks: among the entry points ``opentelemetry_traces_exporter`` and ``opentelemetry_metrics_exporter``.
"""

from __future__ import annotations

import logging
import os
from importlib.metadata import entry_points
from typing import Any, Final

from opentelemetry.sdk.metrics.export import MetricExporter, MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import SpanProcessor, SynchronousMultiSpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from otel_lifecycle._configuration.default_endpoint import DefaultEndpoint
from otel_lifecycle._configuration.exporters import ProcessMetrics, ProcessSpans
from otel_lifecycle._configuration.otlp_file import FileMetricExporter, FileSpanExporter, OtlpFile
from otel_lifecycle._configuration.settings import OTLP_NAMES, Settings
from otel_lifecycle._log import say
from otel_lifecycle.errors import ConfigurationError

BATCH_WITH_TOKEN_TIMES: Final = 64
"""Spans in a message, where each has the time of every token.

A gRPC receiver takes 4 MiB by default and refuses the whole message beyond that. The times of 10,000 tokens are some
55 KB, so 64 spans fit even if each is such a request. The SDK's 512 do not, even with four stage spans to each request.
"""

FILE_DELAY_MS: Final = 500
"""A span reaches the file within this time, so that a killed process has written what ended a second before."""


def span_processor(settings: Settings, file: OtlpFile | None) -> SpanProcessor | None:
    """Return what exports the spans of this process; None where nothing does."""
    # A batch processor for each exporter: a slow exporter fills its own queue only.
    processors: list[SpanProcessor] = [
        BatchSpanProcessor(exporter, max_export_batch_size=_batch(settings))
        for exporter in map(_Spans(settings).make, settings.exporters.get("traces", ()))
    ]
    if file is not None:
        exporter = ProcessSpans(FileSpanExporter(file))
        processors.append(BatchSpanProcessor(exporter, schedule_delay_millis=FILE_DELAY_MS))
    if len(processors) < 2:
        return processors[0] if processors else None
    # One object, because the lifecycle processor hands its spans on to one.
    several = SynchronousMultiSpanProcessor()  # type: ignore[no-untyped-call]  # the SDK gives it no types
    for processor in processors:
        several.add_span_processor(processor)
    return several


def _batch(settings: Settings) -> int | None:
    """Return how many spans go out in one message; None for the SDK's own default or variable."""
    chosen = os.environ.get("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "").strip()
    return None if chosen or not settings.token_times else BATCH_WITH_TOKEN_TIMES


def metric_readers(settings: Settings, file: OtlpFile | None, *, child: bool) -> list[MetricReader]:
    """Return the readers that export the metrics of this process."""
    readers = _Readers(settings)
    made = [readers.make(name, child=child) for name in settings.exporters.get("metrics", ())]
    if file is not None:
        made.append(readers.periodic(FileMetricExporter(file)))
    return [reader for reader in made if reader is not None]


class _Spans:
    """Makes the span exporters of the settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def make(self, name: str) -> SpanExporter:
        if name not in OTLP_NAMES:
            return ProcessSpans(_instance(name, "traces", (SpanExporter,)))
        settings = self._settings
        protocol = OTLP_NAMES[name] or settings.protocols["traces"]
        return ProcessSpans(_otlp_spans(settings, protocol), _default_endpoint(settings, "traces", protocol), protocol)


class _Readers:
    """Makes the metric readers of the settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def make(self, name: str, *, child: bool) -> MetricReader | None:
        settings = self._settings
        if name in OTLP_NAMES:
            protocol = OTLP_NAMES[name] or settings.protocols["metrics"]
            return self.periodic(_otlp_metrics(settings, protocol), _default_endpoint(settings, "metrics", protocol))
        try:
            found = _instance(name, "metrics", (MetricExporter, MetricReader))
        except ConfigurationError as error:
            if not child:
                raise
            # A reader that serves on a port (prometheus) has it in the parent: the child goes on without.
            say(f"exporter.{name}", f"a forked process has no exporter {name!r}", level=logging.WARNING, error=error)
            return None
        # A pull reader has no exporter to wrap.  In a child it is a new one, so it has nothing of the parent's.
        return found if isinstance(found, MetricReader) else self.periodic(found)

    def periodic(self, exporter: MetricExporter, endpoint: DefaultEndpoint | None = None) -> MetricReader:
        return PeriodicExportingMetricReader(
            ProcessMetrics(exporter, endpoint), export_interval_millis=self._settings.metric_interval * 1000
        )


def _instance(name: str, signal: str, kinds: tuple[type, ...]) -> Any:
    """Make the exporter that an entry point names; ConfigurationError where it cannot be made."""
    # Settings have refused names that are not installed.
    entry = next(entry for entry in entry_points(group=f"opentelemetry_{signal}_exporter") if entry.name == name)
    try:
        made = entry.load()()
    except Exception as error:
        # A third party's exporter may raise anything here; configure() reports it to the app once.
        raise ConfigurationError(f"the {signal} exporter {name!r} cannot be made: {error!r:.200}") from error
    if not isinstance(made, kinds):
        raise ConfigurationError(f"{name!r} exports no {signal}: it makes a {type(made).__name__}")
    return made


def _otlp_spans(settings: Settings, protocol: str) -> SpanExporter:
    if protocol == "grpc":
        # Imported here: it loads grpcio, which is of no use to an app that exports over HTTP.
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

        return Grpc(endpoint=settings.endpoint)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http

    return Http(endpoint=_http_endpoint(settings, "traces"))


def _otlp_metrics(settings: Settings, protocol: str) -> MetricExporter:
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as Grpc

        return Grpc(endpoint=settings.endpoint)
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as Http

    return Http(endpoint=_http_endpoint(settings, "metrics"))


def _http_endpoint(settings: Settings, signal: str) -> str | None:
    """A base URL gets the signal's path, as the variable's does; the exporter's argument is taken as it is."""
    return None if settings.endpoint is None else f"{settings.endpoint.rstrip('/')}/v1/{signal}"


def _default_endpoint(settings: Settings, signal: str, protocol: str) -> DefaultEndpoint | None:
    """Return the default endpoint where none is configured; a configured one keeps its exporter's retries."""
    return DefaultEndpoint(protocol) if signal in settings.default_endpoint else None
