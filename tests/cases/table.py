"""The cases that are told with the events and times of one request, each with the outcome worked out by hand."""

from __future__ import annotations

from typing import Final

from otel_lifecycle.errors import EventAfterTerminal, IllegalTransition, NonMonotonicTime

from .notation import Case, choices, std, tokens

CASES: Final = (
    # A role-only frame during prefill is not a token: neither a TTFT of 0.9 nor a gap of 1.3.
    Case(
        id="C01",
        script="arrive 0, admit 0, input_ready 0, token 0.90 n=0, "
        "first_token 2.20, token 2.22, token 2.24, complete 2.24",
        metrics={
            "queue_wait": 0, "preprocessing": 0, "prefill": 2.2, "ttft": 2.2, "tpot": 0.02,
            "decode_time": 0.04, "token_span": 0.04, "e2e": 2.24, "streamed_tokens": 3,
        },
        stage="prefill",
        share=2.2 / 2.24,
        itl=(0.02, 0.02),
    ),
    # A reasoning token is a token.
    Case(
        id="C03",
        script=std("0", "0", "1.0") + ", token 1.1, token 1.2, token 1.3, token 1.4, token 1.5, complete 1.5",
        metrics={
            "queue_wait": 0, "preprocessing": 0, "prefill": 1.0, "ttft": 1.0, "tpot": 0.1,
            "decode_time": 0.5, "token_span": 0.5, "e2e": 1.5, "streamed_tokens": 6,
        },
        stage="prefill",
        share=2 / 3,
        itl=(0.1,) * 5,
    ),
    # So is a tool-call delta.
    Case(
        id="C04",
        script=std("0.1", "0.1", "0.6") + ", token 0.85, token 0.90, complete 0.90",
        metrics={
            "queue_wait": 0.1, "preprocessing": 0.1, "prefill": 0.6, "ttft": 0.8, "tpot": 0.05,
            "decode_time": 0.1, "token_span": 0.1, "e2e": 0.9, "streamed_tokens": 3,
        },
        stage="prefill",
        share=2 / 3,
        itl=(0.05, 0.05),
    ),
    # Output held back by moderation: delivery has an attribute of its own and leaves TTFT alone.
    Case(
        id="C05",
        script=std("0", "0", "0.2") + f", {tokens('0.3', '7.9', '0.1')}, delivered 8.0, complete 8.0",
        metrics={
            "queue_wait": 0, "preprocessing": 0, "prefill": 0.2, "ttft": 0.2, "tpot": 0.1,
            "decode_time": 7.8, "token_span": 7.7, "e2e": 8.0, "streamed_tokens": 78,
        },
        stage="decode",
        share=7.8 / 8,
        itl=(0.1,) * 77,
        attributes={"inference.delivered": 8.0},
    ),
    # Arrival is when the request entered the process, though the adapter was told of it after tokenisation.
    Case(
        id="C06",
        script="arrive 0, admit 0, input_ready 0.8, first_token 1.5, complete 1.5",
        metrics={
            "queue_wait": 0, "preprocessing": 0.8, "prefill": 0.7, "ttft": 1.5,
            "decode_time": 0, "token_span": 0, "e2e": 1.5, "streamed_tokens": 1,
        },
        stage="preprocessing",
        share=0.8 / 1.5,
    ),
    # Times reported long after the end give the spans and figures they would have given live.
    Case(
        id="C07",
        script="arrive 40.0, admit 40.5, input_ready 40.7, first_token 41.5, token 41.6, complete 41.6",
        metrics={
            "queue_wait": 0.5, "preprocessing": 0.2, "prefill": 0.8, "ttft": 1.5, "tpot": 0.1,
            "decode_time": 0.1, "token_span": 0.1, "e2e": 1.6, "streamed_tokens": 2,
        },
        stage="prefill",
        share=0.5,
        itl=(0.1,),
    ),
    # A whole answer at once: its latency is not a TTFT, and TPOT does not swallow it.
    Case(
        id="C08",
        script="arrive 0, admit 0, input_ready 0, output 5.0 n=40, complete 5.0",
        metrics={"queue_wait": 0, "preprocessing": 0, "e2e": 5.0, "streamed_tokens": 40},
        stage=None,
    ),
    # Chunks of prefill are notes.
    Case(
        id="C10",
        script="arrive 0, admit 0, input_ready 0, prefill_chunk 0.4, prefill_chunk 0.8, "
        "first_token 1.2, token 1.3, complete 1.3",
        metrics={
            "queue_wait": 0, "preprocessing": 0, "prefill": 1.2, "ttft": 1.2, "tpot": 0.1,
            "decode_time": 0.1, "token_span": 0.1, "e2e": 1.3, "streamed_tokens": 2,
        },
        stage="prefill",
        share=1.2 / 1.3,
        itl=(0.1,),
    ),
    # A gap between chunks of several tokens is not inter-token latency.
    Case(
        id="C11",
        script=std("0", "0", "1.0") + ", token 1.3 n=3, token 1.6 n=3, complete 1.6",
        metrics={
            "queue_wait": 0, "preprocessing": 0, "prefill": 1.0, "ttft": 1.0, "tpot": 0.1,
            "decode_time": 0.6, "token_span": 0.6, "e2e": 1.6, "streamed_tokens": 7,
        },
        stage="prefill",
        share=1 / 1.6,
    ),
    # The first chunk may hold several tokens too, and all of them count.
    Case(
        id="C12",
        script=std("0", "0", "0.5") + " n=4, token 0.8 n=4, complete 0.8",
        metrics={
            "queue_wait": 0, "preprocessing": 0, "prefill": 0.5, "ttft": 0.5, "tpot": 0.3 / 7,
            "decode_time": 0.3, "token_span": 0.3, "e2e": 0.8, "streamed_tokens": 8,
        },
        stage="prefill",
        share=5 / 8,
    ),
    # One token has no gap: no division by zero, no 0, no -1.
    Case(
        id="C14",
        script=std("0.1", "0.1", "0.3") + ", complete 0.5",
        metrics={
            "queue_wait": 0.1, "preprocessing": 0.1, "prefill": 0.3, "ttft": 0.5,
            "decode_time": 0, "token_span": 0, "e2e": 0.5, "streamed_tokens": 1,
        },
        stage="prefill",
        share=0.6,
    ),
    # TTFT is not part of TPOT.
    Case(
        id="C16",
        script=std("0", "0", "2.0") + ", token 2.1, token 2.2, token 2.3, token 2.4, complete 2.4",
        metrics={
            "queue_wait": 0, "preprocessing": 0, "prefill": 2.0, "ttft": 2.0, "tpot": 0.1,
            "decode_time": 0.4, "token_span": 0.4, "e2e": 2.4, "streamed_tokens": 5,
        },
        stage="prefill",
        share=2 / 2.4,
        itl=(0.1,) * 4,
    ),
    # A pause of the engine shows in the largest gap, not in a violation.
    Case(
        id="C19",
        script=std("0", "0", "1.0") + ", token 1.1, token 6.1, token 6.2, complete 6.2",
        metrics={
            "queue_wait": 0, "preprocessing": 0, "prefill": 1.0, "ttft": 1.0, "tpot": 5.2 / 3,
            "decode_time": 5.2, "token_span": 5.2, "e2e": 6.2, "streamed_tokens": 4,
        },
        stage="decode",
        share=5.2 / 6.2,
        itl=(0.1, 5.0, 0.1),
        attributes={"inference.itl.p50": 0.1, "inference.itl.max": 5.0},
    ),
    # A completion without a token.
    Case(
        id="C20",
        script="arrive 0, admit 0.1, input_ready 0.2, output 0.6 n=0, complete 0.6",
        metrics={"queue_wait": 0.1, "preprocessing": 0.1, "e2e": 0.6, "streamed_tokens": 0},
        stage=None,
    ),
    # An embedding never decodes.
    Case(
        id="C21",
        script="arrive 0, admit 0.1, input_ready 0.2, complete 0.5",
        shape="pooling",
        metrics={"queue_wait": 0.1, "preprocessing": 0.1, "prefill": 0.3, "e2e": 0.5},
        stage="prefill",
        share=0.6,
    ),
    # A client that leaves stops the server: cancelled, and counted.
    Case(
        id="C23",
        script=std("0", "0", "0.2") + ", token 0.3, cancel 0.35 client_disconnected",
        status="cancelled",
        metrics={
            "queue_wait": 0, "preprocessing": 0, "prefill": 0.2, "ttft": 0.2, "tpot": 0.1,
            "decode_time": 0.15, "token_span": 0.1, "e2e": 0.35, "streamed_tokens": 2,
        },
        stage="decode",
        itl=(0.1,),
        attributes={"inference.end.reason": "client_disconnected"},
    ),
    # Cancelled while queued: the wait it gave up is not a queue sample.
    Case(
        id="C26",
        script="arrive 0, cancel 2.0",
        status="cancelled",
        metrics={"e2e": 2.0, "streamed_tokens": 0},
        stage="queued",
    ),
    # Rejected at admission.
    Case(
        id="C28",
        script="arrive 0, fail 0.001 queue_full",
        status="failed",
        metrics={"e2e": 0.001, "streamed_tokens": 0},
        stage="queued",
        error_type="queue_full",
        attributes={"inference.end.reason": "queue_full"},
    ),
    # A client that left is not a server that stopped.
    Case(
        id="C29",
        script=std("0.5", "0", "1.5")
        + f", token 2.5, token 3.0, client_disconnected 3.0, {tokens('3.5', '8.5', '0.5')}, complete 8.5",
        metrics={
            "queue_wait": 0.5, "preprocessing": 0, "prefill": 1.5, "ttft": 2.0, "tpot": 0.5,
            "decode_time": 6.5, "token_span": 6.5, "e2e": 8.5, "streamed_tokens": 14,
        },
        stage="decode",
        share=6.5 / 8.5,
        itl=(0.5,) * 13,
        attributes={"inference.client.disconnected": True, "inference.client.unserved": True},
    ),
    # A token committed after the abort is wasted, and moves nothing.
    Case(
        id="C30",
        script=std("0", "0", "1.0") + ", token 1.5, cancel 2.0, token 2.01 (illegal)",
        status="cancelled",
        metrics={
            "queue_wait": 0, "preprocessing": 0, "prefill": 1.0, "ttft": 1.0, "tpot": 0.5,
            "decode_time": 1.0, "token_span": 0.5, "e2e": 2.0, "streamed_tokens": 2,
        },
        stage="decode",
        itl=(0.5,),
        refused=EventAfterTerminal,
        violations=("event_after_terminal",),
        wasted=1,
    ),
    # An error after some tokens does not join the successes.
    Case(
        id="C33-failed",
        script=std("0", "0", "0.5") + ", token 0.6, token 0.7, fail 0.75 engine_error",
        status="failed",
        metrics={
            "queue_wait": 0, "preprocessing": 0, "prefill": 0.5, "ttft": 0.5, "tpot": 0.1,
            "decode_time": 0.25, "token_span": 0.2, "e2e": 0.75, "streamed_tokens": 3,
        },
        stage="decode",
        itl=(0.1, 0.1),
        error_type="engine_error",
        attributes={"inference.end.reason": "engine_error"},
    ),
    Case(
        id="C33-completed",
        script=std("0", "0", "0.5") + f", {tokens('0.6', '2.5', '0.1')}, complete 2.5",
        metrics={
            "queue_wait": 0, "preprocessing": 0, "prefill": 0.5, "ttft": 0.5, "tpot": 0.1,
            "decode_time": 2.0, "token_span": 2.0, "e2e": 2.5, "streamed_tokens": 21,
        },
        stage="decode",
        share=0.8,
        itl=(0.1,) * 20,
    ),
    # Preprocessing before the queue is not blamed on the queue.
    Case(
        id="C41",
        script="arrive 0, input_ready 0.8, admit 1.0, first_token 1.5, token 1.6, complete 1.6",
        shape="preprocess_first",
        metrics={
            "queue_wait": 0.2, "preprocessing": 0.8, "prefill": 0.5, "ttft": 1.5, "tpot": 0.1,
            "decode_time": 0.1, "token_span": 0.1, "e2e": 1.6, "streamed_tokens": 2,
        },
        stage="preprocessing",
        share=0.5,
        itl=(0.1,),
    ),
    # Preempted after it produced tokens: gross durations, net shares.
    Case(
        id="C43",
        script=std("1.0", "0", "1.0") + ", token 2.1, preempt 2.2, resume 3.2, token 4.0, complete 4.0",
        metrics={
            "queue_wait": 1.0, "preprocessing": 0, "prefill": 1.0, "ttft": 2.0, "tpot": 1.0,
            "decode_time": 2.0, "token_span": 2.0, "e2e": 4.0, "streamed_tokens": 3,
        },
        stage="mixed",
        share=1 / 3,
        largest="queue",
        itl=(0.1, 1.9),
        preempted={"decode": 1.0},
    ),
    # The same engine emits first_token again after the recompute: no second sample, and no token.
    Case(
        id="C44",
        script=std("1.0", "0", "1.0")
        + ", token 2.1, preempt 2.2, resume 3.2, first_token 3.9 (illegal), token 4.0, complete 4.0",
        metrics={
            "queue_wait": 1.0, "preprocessing": 0, "prefill": 1.0, "ttft": 2.0, "tpot": 1.0,
            "decode_time": 2.0, "token_span": 2.0, "e2e": 4.0, "streamed_tokens": 3,
        },
        stage="mixed",
        share=1 / 3,
        largest="queue",
        itl=(0.1, 1.9),
        preempted={"decode": 1.0},
        refused=IllegalTransition,
        violations=("illegal_transition",),
    ),
    # Four choices are one request.
    Case(
        id="C47",
        script="arrive 0, admit 0, input_ready 0, "
        + choices(("0.50", "1.0"), ("0.52", "1.2"), ("0.55", "1.1"), ("0.60", "1.4"), count=6)
        + ", complete 1.4",
        metrics={
            "queue_wait": 0, "preprocessing": 0, "prefill": 0.5, "ttft": 0.5, "tpot": 0.1265,
            "decode_time": 0.9, "token_span": 0.9, "e2e": 1.4, "streamed_tokens": 24,
        },
        stage="decode",
        share=0.9 / 1.4,
        itl=(0.1,) * 5 + (0.136,) * 5 + (0.11,) * 5 + (0.16,) * 5,
    ),
    # Of four beams one is returned: the server counts its tokens.
    Case(
        id="C48",
        script=std("0", "0", "0.5") + f", {tokens('0.6', '1.4', '0.1')}, complete 1.4",
        metrics={
            "queue_wait": 0, "preprocessing": 0, "prefill": 0.5, "ttft": 0.5, "tpot": 0.1,
            "decode_time": 0.9, "token_span": 0.9, "e2e": 1.4, "streamed_tokens": 10,
        },
        stage="decode",
        share=0.9 / 1.4,
        itl=(0.1,) * 9,
    ),
    # The third attempt of a retried request is a request of its own.
    Case(
        id="C50",
        script="arrive 2.5, admit 2.5, input_ready 2.5, first_token 3.1, complete 3.3",
        metrics={
            "queue_wait": 0, "preprocessing": 0, "prefill": 0.6, "ttft": 0.6,
            "decode_time": 0.2, "token_span": 0, "e2e": 0.8, "streamed_tokens": 1,
        },
        stage="prefill",
        share=0.75,
    ),
    # The clock slewed by 2 ms: what hangs on the impossible time is None, the rest stands.
    Case(
        id="C56",
        script="arrive 9.9, admit 10.000, input_ready 9.998 (lost), first_token 10.5, complete 10.6",
        metrics={
            "queue_wait": 0.1, "ttft": 0.6, "decode_time": 0.1, "token_span": 0, "e2e": 0.7, "streamed_tokens": 1,
        },
        stage=None,
        refused=NonMonotonicTime,
        violations=("non_monotonic_time",),
    ),
    # A first token before the arrival: no sample, not one of the lowest bucket.
    Case(
        id="C59",
        script="arrive 0, admit 0, input_ready 0, first_token -0.1 (lost), complete 1.0",
        metrics={"queue_wait": 0, "preprocessing": 0, "e2e": 1.0, "streamed_tokens": 1},
        stage=None,
        refused=NonMonotonicTime,
        violations=("non_monotonic_time",),
    ),
    # Two thousand tokens push no boundary out of the span.
    Case(
        id="C63",
        script=std("0.1", "0.1", "0.3") + f", {tokens('0.51', '20.49', '0.01')}, complete 20.49",
        metrics={
            "queue_wait": 0.1, "preprocessing": 0.1, "prefill": 0.3, "ttft": 0.5, "tpot": 0.01,
            "decode_time": 19.99, "token_span": 19.99, "e2e": 20.49, "streamed_tokens": 2000,
        },
        stage="decode",
        share=19.99 / 20.49,
        itl=(0.01,) * 1999,
    ),
    # A long stream is not a slow one: TTFT and TPOT say so, E2E does not.
    Case(
        id="C86",
        script=std("0", "0", "0.4") + f", {tokens('0.8', '300', '0.4')}, complete 300",
        metrics={
            "queue_wait": 0, "preprocessing": 0, "prefill": 0.4, "ttft": 0.4, "tpot": 0.4,
            "decode_time": 299.6, "token_span": 299.6, "e2e": 300, "streamed_tokens": 750,
        },
        stage="decode",
        share=299.6 / 300,
        itl=(0.4,) * 749,
    ),
)  # fmt: skip

BY_ID: Final = {case.id: case for case in CASES}
