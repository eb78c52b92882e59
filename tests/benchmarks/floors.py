"""The least that the end of a recorded request can cost: a program that does what the contract demands there by hand.

How it works.  The contract's ratio cannot be reached by any program in some rows, because what has to be on the span
costs more by itself.  The limit of such a row is then what this program takes in the same run, and a tenth.  It has no
states, no checks, no lock, no violations, no neighbours and no guard; it knows that the request went well.

What it does: it subtracts and sorts the gaps between the tokens, takes three quantiles and the longest, computes the
durations and shares, adds the five events and the attributes of this package to the span in one call, makes the four
spans of the stages, hands its figures over to be recorded later, and ends the span, which a processor sees.  It goes
through the SDK's public interface, as any span must that samplers and other processors see.  Frozen: a change of it
moves limits.
"""

from __future__ import annotations

from itertools import compress, count, repeat
from operator import gt, sub
from time import perf_counter_ns, time_ns
from typing import Any, Final, NamedTuple

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.trace import Span, set_span_in_context

from otel_lifecycle import semconv
from tests.benchmarks.measure import Trial, stopwatch
from tests.benchmarks.subjects import LABELS, MODEL, Providers

SECOND: Final = 1e9
TTFT_S: Final = 1
E2E_S: Final = 60
EVENTS: Final = ("arrive", "admit", "input_ready", "first_token", "complete")
STAGES: Final = ("queue", "preprocessing", "prefill", "decode")
DURATIONS: Final = (semconv.QUEUE_WAIT, semconv.PREPROCESSING, semconv.PREFILL, semconv.DECODE_TIME)
# Alone on its engine: the same for every request of this program.
COMPANY: Final[dict[str, Any]] = {
    semconv.QUEUE_AHEAD: 0,
    semconv.QUEUE_RUNNING: 0,
    semconv.COMPANY_PREFILL: 0.0,
    semconv.COMPANY_DECODE: 0.0,
    semconv.BOTTLENECK_CAUSE: "idle",
    semconv.QUEUE_BESIDE_PREPROCESSING: 0.0,
    semconv.QUEUE_BESIDE_PREFILL: 0.0,
    semconv.QUEUE_BESIDE_DECODE: 0.0,
}


class OpenRequest(NamedTuple):
    """A request in decode: its span, the times of its boundaries, the times of its tokens, and the clock's offset."""

    span: Span
    bounds: list[int]
    log: list[int]
    offset: int


class SeesSpans(SpanProcessor):
    """A processor that looks at every span that ends: those of other libraries may be requests, too."""

    def on_end(self, span: ReadableSpan) -> None:
        """Tell this program's own spans from those of others."""
        scope = span.instrumentation_scope
        if scope is not None and scope.name == "floor":
            return


class Marks:
    """Takes the times of tokens as they come, so that their gaps differ as those of a request do."""

    __slots__ = ("log",)

    def __init__(self, first: int) -> None:
        self.log = [first]

    def token(self) -> None:
        """Append the time."""
        self.log.append(perf_counter_ns())


class EndByHand(Providers):
    """Requests whose end is written out by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.tracer_provider.add_span_processor(SeesSpans())
        self.keep()
        self.tracer = self.tracer_provider.get_tracer("floor")
        self.handed_over: list[tuple[list[int], list[int]]] = []

    def open(self, tokens: int) -> OpenRequest:
        """Return a request that has put out so many tokens after its first."""
        span = self.tracer.start_span(f"chat {MODEL}", attributes=LABELS)
        bounds = [perf_counter_ns() for _ in EVENTS[:-1]]
        marks = Marks(bounds[-1])
        for _ in range(tokens):
            marks.token()
        return OpenRequest(span, bounds, marks.log, time_ns() - perf_counter_ns())

    def end(self, request: OpenRequest) -> None:
        """Do at its end what the contract demands."""
        span, bounds, log, offset = request
        bounds.append(perf_counter_ns())
        gaps = sorted(map(sub, log[1:], log))
        self.handed_over.append((bounds, gaps))
        for name, at in zip(EVENTS, bounds, strict=True):
            span.add_event(name, None, at + offset)
        span.set_attributes({**figures(bounds), **of_tokens(log, gaps), **COMPANY, **stalls(log, gaps)})
        parent = set_span_in_context(span, Context())
        for place, stage in enumerate(STAGES):
            child = self.tracer.start_span(
                stage, parent, attributes={semconv.STAGE: stage}, start_time=bounds[place] + offset
            )
            child.end(bounds[place + 1] + offset)
        span.end(bounds[-1] + offset)

    def export(self) -> int:
        """Encode the spans; the figures are recorded on another thread, which is not what is measured."""
        self.handed_over.clear()
        return super().export()


def figures(bounds: list[int]) -> dict[str, Any]:
    """Return the attributes that follow from the boundaries."""
    spent = list(map(sub, bounds[1:], bounds))
    whole = bounds[-1] - bounds[0]
    shares = [time / whole for time in spent]
    largest = max(shares)
    stage = STAGES[shares.index(largest)]
    ttft = (bounds[-2] - bounds[0]) / SECOND
    found: dict[str, Any] = {
        semconv.OUTCOME: "completed",
        semconv.LEGAL: True,
        semconv.VIOLATIONS: 0,
        semconv.E2E: whole / SECOND,
        semconv.TTFT: ttft,
        semconv.SLO_MET: ttft <= TTFT_S and whole <= E2E_S * SECOND,
        semconv.BOTTLENECK: stage if largest >= 0.45 else "mixed",
        semconv.DOMINANT_STAGE: stage,
        semconv.DOMINANT_SHARE: largest,
        semconv.QUEUE_IDLE: spent[0] / SECOND,
    }
    for name, attribute, time, share in zip(STAGES, DURATIONS, spent, shares, strict=True):
        found[attribute] = time / SECOND
        found[semconv.SHARE_PREFIX + name] = share
    return found


def of_tokens(log: list[int], gaps: list[int]) -> dict[str, Any]:
    """Return the attributes that follow from the tokens."""
    span, last = log[-1] - log[0], len(gaps) - 1
    return {
        semconv.GEN_AI_USAGE_OUTPUT_TOKENS: len(log),
        semconv.STREAMED_TOKENS: len(log),
        semconv.TOKEN_SPAN: span / SECOND,
        semconv.TPOT: span / len(gaps) / SECOND,
        semconv.ITL_COUNT: len(gaps),
        semconv.ITL_MAX: gaps[last] / SECOND,
        semconv.ITL_P50: quantile(gaps, 0.5 * last) / SECOND,
        semconv.ITL_P95: quantile(gaps, 0.95 * last) / SECOND,
        semconv.ITL_P99: quantile(gaps, 0.99 * last) / SECOND,
    }


def stalls(log: list[int], gaps: list[int]) -> dict[str, Any]:
    """Return the attributes of the stalls: gaps far above the usual one, without that."""
    usual = gaps[(len(gaps) - 1) // 2]
    above = max(2 * usual, usual + 5_000_000)
    if gaps[-1] <= above:
        return {semconv.STALL_COUNT: 0, semconv.STALL_TIME: 0.0}
    places = compress(count(), map(gt, map(sub, log[1:], log), repeat(above)))
    long = [log[place + 1] - log[place] - usual for place in places]
    time = sum(long) / SECOND
    return {
        semconv.STALL_COUNT: len(long),
        semconv.STALL_TIME: time,
        semconv.STALL_MAX: max(long) / SECOND,
        semconv.STALL_PREFILL: 0.0,
        semconv.STALL_PREEMPTION: 0.0,
        semconv.STALL_UNEXPLAINED: time,
    }


def quantile(gaps: list[int], position: float) -> float:
    """Return what lies at a position of sorted gaps, interpolated."""
    below = int(position)
    lower = gaps[below]
    return lower + (gaps[min(below + 1, len(gaps) - 1)] - lower) * (position - below)


def ending_by_hand(tokens: int, ends: int) -> Trial:
    """Return a trial that ends requests of so many tokens by hand and counts their ends alone."""
    server = EndByHand()

    def trial() -> int:
        spent: list[int] = []
        for _ in range(ends):
            request = server.open(tokens)
            with stopwatch(spent):
                server.end(request)
        server.export()
        return sum(spent)

    return trial
