"""The arguments of ``configure()``, documented and typed once.  How they are read is in ``settings``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from otel_lifecycle._core.slo import Slo

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.sampling import Sampler


class SettingKeywords(TypedDict, total=False):
    """The arguments of ``configure()``; what is None or left out is read from the environment.

    ``service_name``.  ``endpoint``: base URL of the Collector.  ``protocol``: ``grpc`` or ``http/protobuf`` (left out:
    by OTEL_* variables; grpc where the port is 4317).  ``metric_interval``: seconds between exports.  ``sampler``: a
    Sampler, or the share of traces to keep.  ``slo``, ``dominance_threshold``, ``strict``, ``token_times``, ``compat``:
    as for :class:`otel_lifecycle.processor.LifecycleSpanProcessor`.  ``resource_attributes``: further attributes of the
    resource.  ``resources``: ``{'cache_usage' | 'memory_used' | 'device_utilization': callback}``.

    ``record_exceptions``: put an exception's message and stack on its span, not its type alone.  ``handle_sigterm``:
    send what is left before SIGTERM ends the process, where nobody else handles it (the default).
    ``shutdown_timeout``: seconds that the end of the process may take.  ``file``: write OTLP JSON lines there,
    ``{pid}`` standing for the process; instead of OTLP, or beside it where an endpoint or an exporter is named.
    ``file_max_mb``: megabytes from which a file is put aside; five are kept.

    ``interference``: work out which other requests held one (the default).  ``culprit_ids``: give their request ids in
    the links to them (the default); they may belong to another tenant.  ``engine_shared``: other processes feed the
    same engine, so this one cannot know what a request waited for.  ``tenant_metrics``: metrics carry the tenant, 64
    of them, then ``_OTHER``.  ``gen_ai_metrics``: the ``gen_ai.server.*`` metrics (the default), which double some of
    ours.  ``gen_ai_usage``: the ``gen_ai.usage.*`` attributes of spans (the default), which an instrumented client's
    span has as well.  ``native_histograms``: exponential histograms in place of buckets.
    """

    service_name: str | None
    endpoint: str | None
    protocol: str | None
    metric_interval: float | None
    sampler: Sampler | float | None
    slo: Slo | None
    dominance_threshold: float | None
    strict: bool | None
    token_times: bool | None
    compat: str | None
    record_exceptions: bool | None
    interference: bool | None
    culprit_ids: bool | None
    engine_shared: bool | None
    tenant_metrics: bool | None
    gen_ai_metrics: bool | None
    gen_ai_usage: bool | None
    native_histograms: bool | None
    shutdown_timeout: float | None
    handle_sigterm: bool | None
    file: str | None
    file_max_mb: int | None
    resources: Mapping[str, Callable[[], Any]] | None
    resource_attributes: Mapping[str, Any] | None
