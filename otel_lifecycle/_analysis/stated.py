"""The conditions of a workload: what must be equal before two runs are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from otel_lifecycle import semconv
from otel_lifecycle._analysis.facts import as_told
from otel_lifecycle._table.schema import BY_ATTRIBUTE
from otel_lifecycle._table.store import RequestTable, quoted

KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "model": (semconv.GEN_AI_REQUEST_MODEL,),
    "revision": (semconv.MODEL_REVISION,),
    "dtype": (semconv.MODEL_DTYPE,),
    "operation": (semconv.GEN_AI_OPERATION_NAME,),
    "provider": (semconv.GEN_AI_PROVIDER_NAME,),
    "backend": (semconv.BACKEND_NAME,),
    "backend version": (semconv.BACKEND_VERSION,),
    "hardware": (semconv.HARDWARE, "hw.name", "hw.model", "device.model.name", "host.cpu.model.name", "host.type"),
    "architecture": ("host.arch",),
    "batch size": (semconv.BATCH_SIZE,),
    "concurrency": (semconv.CONCURRENCY,),
    "cache policy": (semconv.CACHE_POLICY,),
    "streamed": (semconv.GEN_AI_REQUEST_STREAM,),
    "max tokens": (semconv.GEN_AI_REQUEST_MAX_TOKENS,),
    "workload": (semconv.WORKLOAD,),
    "service": ("service.name",),
    "service version": ("service.version",),
}
"""Condition -> the attributes it is read from, the first that is there."""

# A value may be an id by mistake; the report must not grow with the requests.
MAX_VALUES: Final = 32
"""Different values of one condition that are kept apart."""

Stated = dict[str, dict[str, int]]
"""Condition -> value -> number of requests; only what is stated, most frequent first."""


def stated(table: RequestTable, launch: Mapping[str, Any], total: int) -> Stated:
    """Return the stated conditions; ``launch``: what the server stated at its start, for what no request states."""
    found: Stated = {}
    for name, value, count in table.connection.execute(_sql()).fetchall():
        values = found.setdefault(name, {})
        key = value if value in values or len(values) < MAX_VALUES else semconv.OTHER
        values[key] = values.get(key, 0) + count
    if total:
        for name, keys in KEYS.items():
            told = next((launch[key] for key in keys if key in launch), None)
            # What a request states is nearer to it than what its server stated at start.
            if told is not None and name not in found:
                found[name] = {str(told): total}
    return {name: found[name] for name in KEYS if name in found}


def _sql() -> str:
    # All keys beside the columns in one list: the JSON of a row is then parsed once, not once a key.
    beside = [key for keys in KEYS.values() for key in keys if key not in BY_ATTRIBUTE]
    columns = [BY_ATTRIBUTE[key] for keys in KEYS.values() for key in keys if key in BY_ATTRIBUTE]
    names, values = [], []
    for name, keys in KEYS.items():
        told = [
            as_told(BY_ATTRIBUTE[key]) if key in BY_ATTRIBUTE else f"beside[{beside.index(key) + 1}]" for key in keys
        ]
        names.append(quoted(name))
        values.append(f"coalesce({', '.join(told)})" if len(told) > 1 else told[0])
    paths = ", ".join(quoted(f'$."{key}"') for key in beside)
    # Most requests state the same: they are counted before anything is made of what they state.
    return f"""
WITH alike AS (
  SELECT {", ".join(columns)}, attributes, count(*) AS n, min(id) AS id FROM live_rows GROUP BY ALL
)
SELECT name, value, sum(n)::BIGINT AS total FROM (
  SELECT unnest([{", ".join(names)}]) AS name, unnest([{", ".join(values)}]) AS value, n, id
  FROM (SELECT *, json_extract_string(attributes, [{paths}]) AS beside FROM alike)
) WHERE value IS NOT NULL GROUP BY name, value ORDER BY total DESC, min(id)"""
