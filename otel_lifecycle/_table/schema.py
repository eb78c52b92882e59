"""The columns of the table ``requests``: the one description of a request that all commands and users share.

``python -m otel_lifecycle._table.schema`` prints it as Markdown.  The documentation is made from that.

Durations are seconds.  Instants are epoch nanoseconds and end in ``_ns``; offsets within a request are seconds after
its arrival.  NULL means unknown and is never 0.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from otel_lifecycle import semconv

VERSION: Final = 1
"""Grows when a column is removed, renamed or gets another meaning.  New columns do not change it."""

VERSION_KEY: Final = "otel_lifecycle_schema_version"
"""The name under which an export states the version."""

TABLE: Final = "requests"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """A column: DuckDB type, unit, and the span attribute that gives its value where one attribute does."""

    name: str
    type: str
    meaning: str
    unit: str = ""
    attribute: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnGroup:
    """Columns that belong together in the documentation."""

    title: str
    columns: tuple[TableColumn, ...]


def _text(name: str, meaning: str, attribute: str | None = None) -> TableColumn:
    return TableColumn(name=name, type="VARCHAR", meaning=meaning, attribute=attribute)


def _flag(name: str, meaning: str, attribute: str | None = None) -> TableColumn:
    return TableColumn(name=name, type="BOOLEAN", meaning=meaning, attribute=attribute)


def _count(name: str, meaning: str, unit: str, attribute: str | None = None) -> TableColumn:
    return TableColumn(name=name, type="BIGINT", meaning=meaning, unit=unit, attribute=attribute)


def _seconds(name: str, meaning: str, attribute: str | None = None) -> TableColumn:
    return TableColumn(name=name, type="DOUBLE", meaning=meaning, unit="s", attribute=attribute)


def _share(name: str, meaning: str, attribute: str | None = None) -> TableColumn:
    return TableColumn(name=name, type="DOUBLE", meaning=meaning, unit="1", attribute=attribute)


def _instant(name: str, meaning: str) -> TableColumn:
    return TableColumn(name=name, type="BIGINT", meaning=meaning, unit="ns")


def _list(name: str, fields: str, meaning: str, unit: str = "") -> TableColumn:
    return TableColumn(name=name, type=f"STRUCT({fields})[]", meaning=meaning, unit=unit)


GROUPS: Final = (
    ColumnGroup(
        title="Identity and place",
        columns=(
            _text("trace_id", "trace, 32 hex digits"),
            _text("span_id", "request span, 16 hex digits"),
            _text("parent_id", "span of the caller, NULL for a root span"),
            _text("request_id", "id that the server gave", semconv.REQUEST_ID),
            _text("name", "name of the span"),
            _text("scope", "instrumentation scope that made the span"),
            _text("source", "file, pipe or address the span was read from"),
            TableColumn(name="line", type="BIGINT", meaning="line or message of the source, from 1"),
        ),
    ),
    ColumnGroup(
        title="Times",
        columns=(
            _instant("arrival_ns", "arrival; the start of the span if it has no `arrive` event"),
            _instant("admitted_ns", "`admit`"),
            _instant("input_ready_ns", "`input_ready`"),
            _instant("first_token_ns", "`first_token`"),
            _instant("end_ns", "end of the span, never before the arrival"),
            # TIMESTAMP and not TIMESTAMP_NS, for DuckDB's date functions; arrival_ns keeps every digit.
            TableColumn(name="arrival", type="TIMESTAMP", meaning="arrival in UTC, cut to microseconds"),
            _seconds("queue_wait", "arrive to admit", semconv.QUEUE_WAIT),
            _seconds("preprocessing", "admit to input_ready", semconv.PREPROCESSING),
            _seconds("prefill", "input_ready to first_token", semconv.PREFILL),
            _seconds("decode_time", "first_token to the end", semconv.DECODE_TIME),
            _seconds("ttft", "time to first token: arrive to first_token", semconv.TTFT),
            _seconds("tpot", "time per output token: mean gap between output tokens", semconv.TPOT),
            _seconds("token_span", "first to last token", semconv.TOKEN_SPAN),
            _seconds("e2e", "arrive to the end", semconv.E2E),
            _seconds("preempted", "time preempted, part of the stages it interrupted", semconv.PREEMPTED),
            _count("preemptions", "times it was preempted", "{preemption}", semconv.PREEMPTIONS),
            _seconds("delivered", "arrive to the first byte sent", semconv.DELIVERED),
            _list(
                "stages",
                'stage VARCHAR, "start" DOUBLE, "end" DOUBLE',
                "stages whose two boundaries are known, in order; `preempted` intervals lie inside the others",
                "s after arrival",
            ),
        ),
    ),
    ColumnGroup(
        title="Outcome and attribution",
        columns=(
            _text("outcome", f"one of {', '.join(semconv.OUTCOMES)}", semconv.OUTCOME),
            _text("failure_stage", "stage in which an abnormal end came", semconv.FAILURE_STAGE),
            _text("reason", "reason of an abnormal end, else its error type", semconv.END_REASON),
            _text("error_type", "error type", semconv.ERROR_TYPE),
            _text("bottleneck", "stage with a dominant share, or `mixed`", semconv.BOTTLENECK),
            _text("bottleneck_cause", "what held the request in that stage", semconv.BOTTLENECK_CAUSE),
            _text("dominant_stage", "largest stage", semconv.DOMINANT_STAGE),
            _share("dominant_share", "its share of the stages' time", semconv.DOMINANT_SHARE),
            *(
                _share(f"share_{stage}", f"share of {stage}, net of preempted time", semconv.SHARE_PREFIX + stage)
                for stage in ("queue", "preprocessing", "prefill", "decode")
            ),
            _flag("client_disconnected", "the client left", semconv.CLIENT_DISCONNECTED),
            _flag("slo_met", "the server judged the objectives as met", semconv.SLO_MET),
            _flag("legal", "every transition was legal; NULL if events were dropped", semconv.LEGAL),
            _list(
                "violations",
                'kind VARCHAR, state VARCHAR, event VARCHAR, "at" DOUBLE, rule VARCHAR',
                "illegal transitions; `at` is NULL if the time is unknown",
                "s after arrival",
            ),
            _count("dropped_events", "span events dropped by limits", "{event}"),
        ),
    ),
    ColumnGroup(
        title="Tokens",
        columns=(
            _count("input_tokens", "input tokens", "{token}", semconv.GEN_AI_USAGE_INPUT_TOKENS),
            _count("output_tokens", "output tokens: streamed, else by the usage figure", "{token}"),
            _count(
                "cached_tokens",
                "input tokens read from a cache",
                "{token}",
                semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS,
            ),
            _count("streamed_tokens", "tokens counted as they were streamed", "{token}", semconv.STREAMED_TOKENS),
            _count("usage_tokens", "output tokens of the usage figure", "{token}", semconv.GEN_AI_USAGE_OUTPUT_TOKENS),
            _count("wasted_tokens", "tokens after the end, where the span shows them", "{token}"),
            _count("itl_count", "single-token gaps", "{gap}", semconv.ITL_COUNT),
            _seconds("itl_p50", "median gap between single tokens", semconv.ITL_P50),
            _seconds("itl_p95", "95th percentile of the gaps", semconv.ITL_P95),
            _seconds("itl_p99", "99th percentile of the gaps", semconv.ITL_P99),
            _seconds("itl_max", "longest gap", semconv.ITL_MAX),
            TableColumn(
                name="tokens",
                type="DOUBLE[]",
                unit="s after arrival",
                meaning="time of each output token, where the span tells it (`token_times=True`, or an event a token)",
            ),
            TableColumn(
                name="gaps", type="DOUBLE[]", unit="s", meaning="every single-token gap, where the span tells it"
            ),
        ),
    ),
    ColumnGroup(
        title="Interference",
        columns=(
            _text("engine", "requests of one engine compete for the same slots", semconv.ENGINE),
            _count("queue_ahead", "requests waiting on arrival", "{request}", semconv.QUEUE_AHEAD),
            _count("queue_running", "requests running on arrival", "{request}", semconv.QUEUE_RUNNING),
            _seconds("queue_preprocessing", "wait beside preprocessing of others", semconv.QUEUE_BESIDE_PREPROCESSING),
            _seconds("queue_prefill", "wait beside prefill of others", semconv.QUEUE_BESIDE_PREFILL),
            _seconds("queue_decode", "wait beside decode of others", semconv.QUEUE_BESIDE_DECODE),
            _seconds("queue_idle", "wait while no request was running", semconv.QUEUE_IDLE),
            _count("stall_count", "stalls between its tokens", "{stall}", semconv.STALL_COUNT),
            _seconds("stall_time", "stall time", semconv.STALL_TIME),
            _seconds("stall_max", "longest stall", semconv.STALL_MAX),
            _seconds("stall_prefill", "stall time beside prefill of others", semconv.STALL_PREFILL),
            _seconds("stall_preemption", "stall time in its own preemption", semconv.STALL_PREEMPTION),
            _seconds("stall_unexplained", "the rest of the stall time", semconv.STALL_UNEXPLAINED),
            TableColumn(
                name="company_prefill",
                type="DOUBLE",
                unit="{request}",
                meaning="mean number of other running requests during prefill",
                attribute=semconv.COMPANY_PREFILL,
            ),
            TableColumn(
                name="company_decode",
                type="DOUBLE",
                unit="{request}",
                meaning="mean number of other running requests during decode",
                attribute=semconv.COMPANY_DECODE,
            ),
            _flag("interference_complete", "false: neighbours were still unknown", semconv.INTERFERENCE_COMPLETE),
            _list(
                "stalls",
                'token BIGINT, "start" DOUBLE, "length" DOUBLE',
                "stalls by the token times: after which token, from when, how long",
                "s after arrival, s",
            ),
            _list(
                "links",
                'trace_id VARCHAR, span_id VARCHAR, reason VARCHAR, "time" DOUBLE, request_id VARCHAR',
                "requests that delayed this one (reason `queue` or `stall`), and other span links (reason NULL)",
                "s",
            ),
        ),
    ),
    ColumnGroup(
        title="Conditions",
        columns=(
            _text("operation", "operation", semconv.GEN_AI_OPERATION_NAME),
            _text("provider", "provider", semconv.GEN_AI_PROVIDER_NAME),
            _text("model", "requested model", semconv.GEN_AI_REQUEST_MODEL),
            _text("revision", "revision of the model", semconv.MODEL_REVISION),
            _text("dtype", "data type of the model", semconv.MODEL_DTYPE),
            _text("backend", "engine software", semconv.BACKEND_NAME),
            _text("backend_version", "its version", semconv.BACKEND_VERSION),
            _count("batch_size", "batch size", "{request}", semconv.BATCH_SIZE),
            _count("concurrency", "concurrency", "{request}", semconv.CONCURRENCY),
            _text("cache_policy", "cache policy", semconv.CACHE_POLICY),
            _flag("streamed", "the answer was streamed", semconv.GEN_AI_REQUEST_STREAM),
            _count("max_tokens", "limit on output tokens", "{token}", semconv.GEN_AI_REQUEST_MAX_TOKENS),
            _text("workload", "workload class that the server gave", semconv.WORKLOAD),
            _text("role", "whole, or the prefill or decode half of a disaggregated request", semconv.ROLE),
            _text("traffic", "live, or the kind of other traffic", semconv.TRAFFIC),
            _count("attempt", "number of the attempt", "{attempt}", semconv.REQUEST_ATTEMPT),
            _text("shape", "lifecycle shape, where the span names it", semconv.SHAPE),
            _text("service", "service.name of the resource", "service.name"),
            _text("service_version", "service.version of the resource", "service.version"),
            TableColumn(
                name="attributes",
                type="JSON",
                meaning="all further attributes of the span and its resource; `attributes->>'key'` gives one as text",
            ),
        ),
    ),
)
"""All columns, in the order of the table."""

COLUMNS: Final = tuple(column for group in GROUPS for column in group.columns)
BY_ATTRIBUTE: Final = {column.attribute: column.name for column in COLUMNS if column.attribute is not None}

SHORT: Final = {
    "model": semconv.GEN_AI_REQUEST_MODEL,
    "operation": semconv.GEN_AI_OPERATION_NAME,
    "provider": semconv.GEN_AI_PROVIDER_NAME,
    "backend": semconv.BACKEND_NAME,
    "revision": semconv.MODEL_REVISION,
    "dtype": semconv.MODEL_DTYPE,
    "workload": semconv.WORKLOAD,
    "batch_size": semconv.BATCH_SIZE,
    "concurrency": semconv.CONCURRENCY,
    "cache_policy": semconv.CACHE_POLICY,
    "traffic": semconv.TRAFFIC,
    "outcome": semconv.OUTCOME,
    "bottleneck": semconv.BOTTLENECK,
    "service": "service.name",
    "version": "service.version",
}
"""Short names of attributes, to group by and in event logs; any other key is the attribute itself."""


def create_statement(table: str = TABLE, columns: Collection[str] | None = None) -> str:
    """Return the SQL that creates the empty table, of all columns or some."""
    told = ", ".join(f'"{one.name}" {one.type}' for one in COLUMNS if columns is None or one.name in columns)
    return f"CREATE TABLE {table} ({told})"


def markdown() -> str:
    """Return the reference of the table as Markdown."""
    return "\n".join(_lines())


def _lines() -> Iterable[str]:
    for group in GROUPS:
        yield f"### {group.title}\n"
        yield "| column | type | unit | meaning | attribute |\n|---|---|---|---|---|"
        for column in group.columns:
            attribute = f"`{column.attribute}`" if column.attribute else ""
            yield f"| `{column.name}` | {column.type} | {column.unit} | {column.meaning} | {attribute} |"
        yield ""


if __name__ == "__main__":
    sys.stdout.write(markdown())
