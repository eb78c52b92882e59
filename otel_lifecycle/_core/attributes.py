"""The attributes that a finished request leaves on its span.

How it works.  Each group of figures has one function, which maps attribute names to values or None.
:func:`end_attributes` joins the groups and drops every None at the end, so a figure that is not known has no attribute.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from otel_lifecycle import semconv
from otel_lifecycle._core.derived import derived_stages
from otel_lifecycle._core.interference import Interference
from otel_lifecycle._core.lifecycle import SHAPES
from otel_lifecycle._core.outputs import OutputFigures
from otel_lifecycle._core.verdict import SECOND, Finished, Verdict, violation_total

AttributeValue: TypeAlias = "str | bool | int | float | list[str]"
Attributes: TypeAlias = "dict[str, AttributeValue | None]"

LONG_WAIT_S: Final = 1.0
"""From this queue wait on a request is marked as one that waited long."""

DURATIONS = {
    "queue_wait": semconv.QUEUE_WAIT,
    "preprocessing": semconv.PREPROCESSING,
    "prefill": semconv.PREFILL,
    "ttft": semconv.TTFT,
    "tpot": semconv.TPOT,
    "decode_time": semconv.DECODE_TIME,
    "token_span": semconv.TOKEN_SPAN,
    "e2e": semconv.E2E,
}
"""Each duration of a verdict -> the attribute of the request span that holds it, in seconds."""

ITL = {
    "count": semconv.ITL_COUNT,
    "p50": semconv.ITL_P50,
    "p95": semconv.ITL_P95,
    "p99": semconv.ITL_P99,
    "max": semconv.ITL_MAX,
}
_OUTPUT_GAP = {
    "count": semconv.OUTPUT_GAP_COUNT,
    "p50": semconv.OUTPUT_GAP_P50,
    "p95": semconv.OUTPUT_GAP_P95,
    "p99": semconv.OUTPUT_GAP_P99,
    "max": semconv.OUTPUT_GAP_MAX,
}
# vLLM's own names and meanings. SGLang and TensorRT-LLM put other meanings under the same names, so `compat` has no
# value for them.
_VLLM = {
    "queue_wait": "gen_ai.latency.time_in_queue",
    "ttft": "gen_ai.latency.time_to_first_token",
    "e2e": "gen_ai.latency.e2e",
    # vLLM's decode ends with the last token, not with the request.
    "token_span": "gen_ai.latency.time_in_model_decode",
}


def end_attributes(
    finished: Finished, verdict: Verdict, *, compat: str | None = None, usage: bool = True
) -> dict[str, AttributeValue]:
    """Return every attribute that is known at the end; ``compat='vllm'`` adds that engine's ``gen_ai.latency.*``.

    ``usage=False`` leaves the ``gen_ai.usage.*`` out: a sum over all spans would count them beside the client's own.
    """
    attributes: Attributes = {
        **_ending(finished, verdict),
        **(_usage(finished, verdict) if usage else {}),
        semconv.STREAMED_TOKENS: verdict.streamed_tokens,
        semconv.STREAMED_CHUNKS: verdict.streamed_chunks,
        **_attribution(verdict),
        semconv.DERIVED: derived_stages(finished.report) or None,
        **{DURATIONS[name]: value for name, value in verdict.seconds.items()},
        **_preemption(finished, verdict),
        **_gaps(finished, verdict),
        **_outputs(verdict.outputs),
        **_notes(finished, verdict),
        **_searched(finished, verdict),
        **(interference_attributes(finished.interference, verdict.cause) if finished.interference is not None else {}),
    }
    if compat == "vllm":
        attributes.update(_vllm(verdict, finished.report["shape"]))
    return {name: value for name, value in attributes.items() if value is not None}


def _ending(finished: Finished, verdict: Verdict) -> Attributes:
    return {
        semconv.OUTCOME: verdict.outcome,
        semconv.FAILURE_STAGE: verdict.failure_stage,
        semconv.END_REASON: finished.reason,
        semconv.ERROR_TYPE: finished.error_type,
        # A span whose events the SDK dropped proves nothing about the server.
        semconv.LEGAL: None if finished.truncated else not finished.violations,
        semconv.VIOLATIONS: violation_total(finished.violations),
    }


def _usage(finished: Finished, verdict: Verdict) -> Attributes:
    given = finished.usage
    return {
        semconv.GEN_AI_USAGE_INPUT_TOKENS: given.get("input_tokens"),
        # The engine's figure wins over the marks: it also counts tokens that never reach the stream, such as a stop
        # token.
        semconv.GEN_AI_USAGE_OUTPUT_TOKENS: given.get("output_tokens", verdict.output_tokens),
        semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: given.get("cached_tokens"),
    }


def _attribution(verdict: Verdict) -> Attributes:
    shares = verdict.shares or {}
    return {
        semconv.BOTTLENECK: verdict.bottleneck,
        semconv.DOMINANT_STAGE: verdict.dominant_stage,
        semconv.DOMINANT_SHARE: verdict.dominant_share,
        **{semconv.SHARE_PREFIX + stage: share for stage, share in shares.items()},
    }


def _preemption(finished: Finished, verdict: Verdict) -> Attributes:
    # A request that was never preempted has neither attribute, so a trace query for their presence finds the others.
    times = sum(finished.preemptions.values())
    return {semconv.PREEMPTED: verdict.preempted, semconv.PREEMPTIONS: times or None}


def _gaps(finished: Finished, verdict: Verdict) -> Attributes:
    gaps, names = verdict.output_gaps, ITL if verdict.outputs is None else _OUTPUT_GAP
    longest = [gap for gap in (*gaps[-1:], finished.longest_folded) if gap is not None]
    attributes: Attributes = {names["max"]: max(longest) / SECOND if longest else None}
    # Quantiles of what is still held would describe the tail of a stream; only the maximum survives folding.
    if finished.gaps_held:
        attributes[names["count"]] = len(gaps) or None
        attributes[names["p50"]] = verdict.gap(0.5)
        attributes[names["p95"]] = verdict.gap(0.95)
        attributes[names["p99"]] = verdict.gap(0.99)
    return attributes


def _outputs(outputs: OutputFigures | None) -> Attributes:
    if outputs is None:
        return {}
    amount = None if outputs.amount is None else float(outputs.amount)
    return {semconv.OUTPUT_UNIT: outputs.unit, semconv.OUTPUT_AMOUNT: amount, semconv.TTFO: outputs.first}


def _notes(finished: Finished, verdict: Verdict) -> Attributes:
    met = None if verdict.slo is None else verdict.slo["all"]
    return {
        semconv.EVENTS_DROPPED: finished.events_dropped or None,
        semconv.CLIENT_DISCONNECTED: finished.client_disconnected or None,
        semconv.DELIVERED: None if finished.delivered is None else finished.delivered / SECOND,
        semconv.SLO_MET: met,
    }


def _searched(finished: Finished, verdict: Verdict) -> Attributes:
    """Say in one attribute each what is searched for.

    Some trace stores compare no numbers, and match several conditions against a trace as a whole: two requests of one
    trace would satisfy them together.
    """
    missed = () if verdict.slo is None else (name for name, met in verdict.slo.items() if not met and name != "all")
    unserved = verdict.outcome == "completed" and finished.client_disconnected
    return {
        semconv.QUEUE_LONG: verdict.seconds.get("queue_wait", 0.0) >= LONG_WAIT_S or None,
        semconv.CLIENT_UNSERVED: unserved or None,
        **{semconv.SLO_MISSED_PREFIX + name: True for name in missed},
    }


def interference_attributes(found: Interference, cause: str | None) -> Attributes:
    """Write who held the request; parts of a split are written even where they are 0, because they add up."""
    queue, stalls, split = found.queue, found.stalls, found.stall_split
    attributes: Attributes = {
        semconv.QUEUE_AHEAD: found.ahead,
        semconv.QUEUE_RUNNING: found.running,
        semconv.COMPANY_PREFILL: found.company_prefill,
        semconv.COMPANY_DECODE: found.company_decode,
        semconv.BOTTLENECK_CAUSE: cause,
        # Only False says something; True is the usual case and would be one more attribute on every span.
        semconv.INTERFERENCE_COMPLETE: None if found.complete else False,
    }
    if queue is not None:
        attributes[semconv.QUEUE_BESIDE_PREPROCESSING] = queue.preprocessing / SECOND
        attributes[semconv.QUEUE_BESIDE_PREFILL] = queue.prefill / SECOND
        attributes[semconv.QUEUE_BESIDE_DECODE] = queue.decode / SECOND
        attributes[semconv.QUEUE_IDLE] = queue.idle / SECOND
    if stalls is not None:
        attributes[semconv.STALL_COUNT] = len(stalls.intervals)
        attributes[semconv.STALL_TIME] = stalls.time / SECOND
        attributes[semconv.STALL_MAX] = None if stalls.longest is None else stalls.longest / SECOND
    # Without a stall there is nothing to split: the count of 0 says it all.
    if split is not None and stalls is not None and stalls.intervals:
        attributes[semconv.STALL_PREFILL] = split.prefill / SECOND
        attributes[semconv.STALL_PREEMPTION] = split.preemption / SECOND
        attributes[semconv.STALL_UNEXPLAINED] = split.unexplained / SECOND
    return attributes


def _vllm(verdict: Verdict, shape: str) -> Attributes:
    names_after_admit = ("preprocessing", "prefill") if SHAPES[shape].queues_first else ("prefill",)
    attributes: Attributes = {_VLLM[name]: verdict.seconds.get(name) for name in _VLLM}
    seconds = verdict.seconds
    # Its prefill begins when the request is scheduled, so it has our preprocessing in it where that follows the queue.
    after_queue = [seconds.get(name) for name in names_after_admit]
    if None not in after_queue:
        prefill = sum(value for value in after_queue if value is not None)
        attributes["gen_ai.latency.time_in_model_prefill"] = prefill
        if "token_span" in seconds:
            attributes["gen_ai.latency.time_in_model_inference"] = prefill + seconds["token_span"]
    return attributes
