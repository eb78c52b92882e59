"""Every name, unit and bucket edge that leaves the process, and the closed sets they draw on.

The ``gen_ai.*`` names are those of the OpenTelemetry GenAI conventions.  They are constants of our own because
``opentelemetry-semantic-conventions`` marks them deprecated since the conventions moved to a repository of their own.
Everything coined here begins with ``inference.``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from otel_lifecycle._vocabulary import *  # noqa: F403  # they are part of this module; see there

SCOPE: Final = "otel_lifecycle"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.41.1"
OTHER: Final = "_OTHER"


GEN_AI_OPERATION_NAME: Final = "gen_ai.operation.name"
GEN_AI_PROVIDER_NAME: Final = "gen_ai.provider.name"
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
GEN_AI_REQUEST_STREAM: Final = "gen_ai.request.stream"
GEN_AI_USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GEN_AI_USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
GEN_AI_RESPONSE_ID: Final = "gen_ai.response.id"
GEN_AI_RESPONSE_MODEL: Final = "gen_ai.response.model"
GEN_AI_RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
ERROR_TYPE: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"

REQUEST_ID: Final = "inference.request.id"
GEN_AI_REQUEST_ID: Final = "gen_ai.request.id"
"""As vLLM calls it; no convention has it, so it is written under ``compat="vllm"`` only."""
REQUEST_ATTEMPT: Final = "inference.request.attempt"
ROLE: Final = "inference.request.role"
TRAFFIC: Final = "inference.traffic"
WORKLOAD: Final = "inference.request.workload"
TENANT: Final = "inference.request.tenant"
BATCH_SIZE: Final = "inference.request.batch_size"
CONCURRENCY: Final = "inference.request.concurrency"
BACKEND_NAME: Final = "inference.backend.name"
BACKEND_VERSION: Final = "inference.backend.version"
MODEL_DTYPE: Final = "inference.model.dtype"
MODEL_REVISION: Final = "inference.model.revision"
CACHE_POLICY: Final = "inference.cache.policy"

OUTCOME: Final = "inference.outcome"
FAILURE_STAGE: Final = "inference.failure.stage"
END_REASON: Final = "inference.end.reason"
BOTTLENECK: Final = "inference.bottleneck"
DERIVED: Final = "inference.derived"
DOMINANT_STAGE: Final = "inference.dominant_stage"
DOMINANT_SHARE: Final = "inference.dominant_share"
SHARE_PREFIX: Final = "inference.share."
QUEUE_WAIT: Final = "inference.queue_wait"
PREPROCESSING: Final = "inference.preprocessing"
PREFILL: Final = "inference.prefill"
TTFT: Final = "inference.ttft"
TPOT: Final = "inference.tpot"
DECODE_TIME: Final = "inference.decode_time"
TOKEN_SPAN: Final = "inference.token_span"
E2E: Final = "inference.e2e"
STREAMED_TOKENS: Final = "inference.streamed_tokens"
STREAMED_CHUNKS: Final = "inference.streamed_chunks"
PREEMPTED: Final = "inference.preempted"
PREEMPTIONS: Final = "inference.preemptions"
CHOICE: Final = "inference.choice"
ITL_COUNT: Final = "inference.itl.count"
ITL_P50: Final = "inference.itl.p50"
ITL_P95: Final = "inference.itl.p95"
ITL_P99: Final = "inference.itl.p99"
ITL_MAX: Final = "inference.itl.max"
LEGAL: Final = "inference.legal"
VIOLATIONS: Final = "inference.violations"
EVENTS_DROPPED: Final = "inference.events.dropped"
CLIENT_DISCONNECTED: Final = "inference.client.disconnected"
CLIENT_UNSERVED: Final = "inference.client.unserved"
DELIVERED: Final = "inference.delivered"
SLO_MET: Final = "inference.slo.met"
OUTPUT_UNIT: Final = "inference.output.unit"
OUTPUT_AMOUNT: Final = "inference.outputs"
TTFO: Final = "inference.time_to_first_output"
OUTPUT_GAP_COUNT: Final = "inference.output.gap.count"
OUTPUT_GAP_P50: Final = "inference.output.gap.p50"
OUTPUT_GAP_P95: Final = "inference.output.gap.p95"
OUTPUT_GAP_P99: Final = "inference.output.gap.p99"
OUTPUT_GAP_MAX: Final = "inference.output.gap.max"
SLO_MISSED_PREFIX: Final = "inference.slo.missed."
ENGINE: Final = "inference.engine"
QUEUE_LONG: Final = "inference.queue.long"
QUEUE_AHEAD: Final = "inference.queue.ahead"
QUEUE_RUNNING: Final = "inference.queue.running"
QUEUE_BESIDE_PREPROCESSING: Final = "inference.queue.beside.preprocessing"
QUEUE_BESIDE_PREFILL: Final = "inference.queue.beside.prefill"
QUEUE_BESIDE_DECODE: Final = "inference.queue.beside.decode"
QUEUE_IDLE: Final = "inference.queue.idle"
STALL_COUNT: Final = "inference.stall.count"
STALL_TIME: Final = "inference.stall.time"
STALL_MAX: Final = "inference.stall.max"
STALL_PREFILL: Final = "inference.stall.prefill"
STALL_PREEMPTION: Final = "inference.stall.preemption"
STALL_UNEXPLAINED: Final = "inference.stall.unexplained"
COMPANY_PREFILL: Final = "inference.company.prefill"
COMPANY_DECODE: Final = "inference.company.decode"
BOTTLENECK_CAUSE: Final = "inference.bottleneck.cause"
INTERFERENCE_COMPLETE: Final = "inference.interference.complete"
LINK_REASON: Final = "inference.link.reason"
LINK_TIME: Final = "inference.link.time"
TOKEN_OFFSETS: Final = "inference.token_offsets"
TOKEN_OFFSETS_DROPPED: Final = "inference.token_offsets.dropped"
STAGE: Final = "inference.stage"
SHAPE: Final = "inference.shape"
TIME_KNOWN: Final = "inference.time.known"
TOKEN_DIRECTION: Final = "inference.token.direction"
VIOLATION_KIND: Final = "inference.violation.kind"
VIOLATION_STATE: Final = "inference.violation.state"
VIOLATION_EVENT: Final = "inference.violation.event"
SLO_OBJECTIVE: Final = "inference.slo.objective"
SLO_STAGE: Final = "inference.slo.stage"
QUEUE_CAUSE: Final = "inference.queue.cause"
STALL_CAUSE: Final = "inference.stall.cause"
STEP_KIND: Final = "inference.step.kind"
STARTUP_PHASE: Final = "inference.startup.phase"
STARTUP_PARAMETER_PREFIX: Final = "inference.startup.parameter."
HARDWARE: Final = "inference.hardware"

VIOLATION_SPAN_EVENT: Final = "inference.violation"

# ---------------------------------------------------------------------------------------------------- metrics

InstrumentKind = Literal["histogram", "counter", "observable_up_down_counter", "observable_gauge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One row of the metric table: what the instrument is called, counts in, and is labelled with.

    ``attributes`` are its own, beyond operation, provider and model, which every metric about requests has.
    """

    name: str
    kind: InstrumentKind
    unit: str
    description: str
    attributes: tuple[str, ...] = ()
    buckets: tuple[float, ...] | None = None


GEN_AI_REQUEST_DURATION: Final = Metric(
    name="gen_ai.server.request.duration",
    kind="histogram",
    unit="s",
    description="Generative AI server request duration such as time-to-last byte or last output token.",
    attributes=(ERROR_TYPE,),
    buckets=GEN_AI_DURATION_BUCKETS,
)
GEN_AI_TIME_TO_FIRST_TOKEN: Final = Metric(
    name="gen_ai.server.time_to_first_token",
    kind="histogram",
    unit="s",
    description="Time to generate first token for successful responses.",
    buckets=GEN_AI_TTFT_BUCKETS,
)
GEN_AI_TIME_PER_OUTPUT_TOKEN: Final = Metric(
    name="gen_ai.server.time_per_output_token",
    kind="histogram",
    unit="s",
    description="Time per output token generated after the first token for successful responses.",
    buckets=GEN_AI_TPOT_BUCKETS,
)
TIME_TO_FIRST_TOKEN: Final = Metric(
    name="inference.time_to_first_token",
    kind="histogram",
    unit="s",
    description="From arrival to the first output token, of every request that produced one.",
    attributes=(OUTCOME,),
    buckets=TTFT_BUCKETS,
)
TIME_PER_OUTPUT_TOKEN: Final = Metric(
    name="inference.time_per_output_token",
    kind="histogram",
    unit="s",
    description="Mean gap between adjacent output tokens of a request, of every request with two tokens.",
    attributes=(OUTCOME,),
    buckets=TOKEN_GAP_BUCKETS,
)
INTER_TOKEN_LATENCY: Final = Metric(
    name="inference.inter_token_latency",
    kind="histogram",
    unit="s",
    description="Every gap between two output tokens that came one at a time.",
    buckets=TOKEN_GAP_BUCKETS,
)
TIME_TO_FIRST_OUTPUT: Final = Metric(
    name="inference.time_to_first_output",
    kind="histogram",
    unit="s",
    description="From arrival to the first output of a request whose outputs are not tokens.",
    attributes=(OUTPUT_UNIT, OUTCOME),
    buckets=TTFT_BUCKETS,
)
OUTPUT_GAP: Final = Metric(
    name="inference.output.gap",
    kind="histogram",
    unit="s",
    description="Every gap between two outputs that are not tokens.",
    attributes=(OUTPUT_UNIT,),
    buckets=TTFT_BUCKETS,
)
OUTPUTS: Final = Metric(
    name="inference.outputs",
    kind="counter",
    unit="1",
    description="Output that is not tokens, in its unit: seconds of audio, steps, images.",
    attributes=(OUTPUT_UNIT,),
)
STAGE_DURATION: Final = Metric(
    name="inference.stage.duration",
    kind="histogram",
    unit="s",
    description="Time in a stage, preemption included, of every stage that finished.",
    attributes=(STAGE,),
    buckets=DURATION_BUCKETS,
)
REQUEST_DURATION: Final = Metric(
    name="inference.request.duration",
    kind="histogram",
    unit="s",
    description="From arrival to the terminal event.",
    attributes=(OUTCOME,),
    buckets=DURATION_BUCKETS,
)
REQUESTS: Final = Metric(
    name="inference.requests",
    kind="counter",
    unit="{request}",
    description="Ended requests, by outcome, by the stage of a failure, by bottleneck and its cause.",
    attributes=(OUTCOME, FAILURE_STAGE, BOTTLENECK, BOTTLENECK_CAUSE, ERROR_TYPE),
)
TOKENS: Final = Metric(
    name="inference.tokens",
    kind="counter",
    unit="{token}",
    description="Tokens read, produced, and produced after the request had ended.",
    attributes=(TOKEN_DIRECTION,),
)
CANCEL_LAG: Final = Metric(
    name="inference.cancel.lag",
    kind="histogram",
    unit="s",
    description="From the end of a request to the last token that the engine still produced for it.",
    buckets=DURATION_BUCKETS,
)
TRANSITION_VIOLATIONS: Final = Metric(
    name="inference.transition.violations",
    kind="counter",
    unit="{violation}",
    description="Lifecycle events that were illegal in their state, or had an impossible time or value.",
    attributes=(VIOLATION_KIND,),
)
SLO_RESULTS: Final = Metric(
    name="inference.slo.results",
    kind="counter",
    unit="{request}",
    description="Objectives judged, whether they were met, and the stage that took most of the time of a missed one.",
    attributes=(SLO_OBJECTIVE, SLO_MET, SLO_STAGE),
)
ACTIVE_REQUESTS: Final = Metric(
    name="inference.active_requests",
    kind="observable_up_down_counter",
    unit="{request}",
    description="Requests that have arrived and not ended, by the stage they are in.",
    attributes=(STAGE,),
)
OLDEST_REQUEST_AGE: Final = Metric(
    name="inference.oldest_request.age",
    kind="observable_gauge",
    unit="s",
    description="Time since arrival of the oldest request that has not ended.",
)
PREEMPTION_COUNT: Final = Metric(
    name="inference.preemptions",
    kind="counter",
    unit="{preemption}",
    description="Times a running request was evicted, by the stage it was in.",
    attributes=(STAGE,),
)
MIXED_TIME: Final = Metric(
    name="inference.mixed.time",
    kind="counter",
    unit="s",
    description="Time in each stage of the completed requests that have no single bottleneck.",
    attributes=(STAGE,),
)
SERVERS: Final = Metric(
    name="inference.servers",
    kind="observable_up_down_counter",
    unit="{server}",
    description="1 while the process serves, 0 after an orderly shutdown; it stays at 1 if the process is killed.",
)
SERVER_START_TIME: Final = Metric(
    name="inference.server.start_time",
    kind="observable_gauge",
    unit="s",
    description="Start of serving, in seconds since 1970; it never decreases within one instance.",
)
STARTUP_DURATION: Final = Metric(
    name="inference.startup.duration",
    kind="histogram",
    unit="s",
    description="Duration of a cold-start phase.",
    attributes=(STARTUP_PHASE,),
    buckets=DURATION_BUCKETS,
)
QUEUE_TIME: Final = Metric(
    name="inference.queue.time",
    kind="counter",
    unit="s",
    description="Queue wait, by the stage that the running requests of the engine were in; idle if none ran.",
    attributes=(QUEUE_CAUSE,),
)
STALLED_TIME: Final = Metric(
    name="inference.stall.time",
    kind="counter",
    unit="s",
    description="Time of unusually long gaps between tokens, by what happened in them.",
    attributes=(STALL_CAUSE,),
)
STEP_DURATION: Final = Metric(
    name="inference.step.duration",
    kind="histogram",
    unit="s",
    description="Duration of an iteration of the engine.",
    attributes=(STEP_KIND,),
    buckets=TOKEN_GAP_BUCKETS,
)
STEP_REQUESTS: Final = Metric(
    name="inference.step.requests",
    kind="histogram",
    unit="{request}",
    description="Requests in an iteration of the engine.",
    attributes=(STEP_KIND,),
    buckets=BATCH_BUCKETS,
)
CACHE_USAGE: Final = Metric(
    name="inference.cache.usage",
    kind="observable_gauge",
    unit="1",
    description="Share of the key-value cache in use.",
)
MEMORY_USED: Final = Metric(
    name="inference.memory.used",
    kind="observable_gauge",
    unit="By",
    description="Memory in use.",
)
DEVICE_UTILIZATION: Final = Metric(
    name="inference.device.utilization",
    kind="observable_gauge",
    unit="1",
    description="Share of time the device was busy.",
)

METRICS: Final[tuple[Metric, ...]] = (
    GEN_AI_REQUEST_DURATION,
    GEN_AI_TIME_TO_FIRST_TOKEN,
    GEN_AI_TIME_PER_OUTPUT_TOKEN,
    TIME_TO_FIRST_TOKEN,
    TIME_PER_OUTPUT_TOKEN,
    INTER_TOKEN_LATENCY,
    TIME_TO_FIRST_OUTPUT,
    OUTPUT_GAP,
    OUTPUTS,
    STAGE_DURATION,
    REQUEST_DURATION,
    REQUESTS,
    TOKENS,
    CANCEL_LAG,
    TRANSITION_VIOLATIONS,
    SLO_RESULTS,
    ACTIVE_REQUESTS,
    OLDEST_REQUEST_AGE,
    PREEMPTION_COUNT,
    MIXED_TIME,
    SERVERS,
    SERVER_START_TIME,
    STARTUP_DURATION,
    QUEUE_TIME,
    STALLED_TIME,
    STEP_DURATION,
    STEP_REQUESTS,
    CACHE_USAGE,
    MEMORY_USED,
    DEVICE_UTILIZATION,
)
