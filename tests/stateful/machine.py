"""A server that does anything at any time: requests, marks, threads, contexts, garbage, collections, shutdowns."""

from __future__ import annotations

import gc
import math
import threading
import time
from contextvars import Context, copy_context
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, rule

import otel_lifecycle as lifecycle
from otel_lifecycle._runtime import runtime
from otel_lifecycle.processor import LifecycleSpanProcessor
from tests.support.telemetry import Telemetry

SECOND = 10**9
COUNTS = st.sampled_from([1, 1, 1, 2, 0, None, -1, 3.5, "many"])
CHOICES = st.sampled_from([0, 0, 0, 1, 2, -1, "first"])
OFFSETS = st.sampled_from([-2 * SECOND, -SECOND // 100, 0, SECOND // 100, 2 * SECOND])
ODD_TIMES = st.sampled_from([None, -1, 2**70, 1.5, math.nan, True, "now"])
REASONS = st.sampled_from([None, "queue_full", "client_disconnected", "free text", ValueError("x"), 7])
MARKS: tuple[str, ...] = (
    "admit",
    "input_ready",
    "first_token",
    "token",
    "output",
    "preempt",
    "resume",
    "prefill_chunk",
    "delivered",
)
MARKS += ("client_disconnected",)
ENDS = ("complete", "cancel", "timeout", "fail")
STAGES = ("queue", "preprocessing", "prefill")


class Arrival:
    """One request: its handle as long as somebody has it, and what was opened on it."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.counted = False
        self.streams: list[Any] = []
        self.blocks: list[Any] = []

    def drop(self) -> None:
        """Let go of everything, in a cycle that only the garbage collector finds."""
        self.streams.clear()
        self.blocks.clear()
        cycle: list[Any] = [self.handle]
        cycle.append(cycle)
        self.handle = None


def act(handle: Any, name: str, count: object, choice: object, times: dict[str, Any], reason: object) -> None:
    """Call one method of a handle with whatever it takes."""
    if name in {"first_token", "token"}:
        getattr(handle, name)(count, choice, **times)
    elif name == "output":
        handle.output(count, **times)
    elif name in {"cancel", "timeout", "fail"}:
        getattr(handle, name)(reason, **times)
    else:
        getattr(handle, name)(**times)


@st.composite
def actions(draw: st.DrawFn, names: tuple[str, ...]) -> tuple[Any, ...]:
    """Draw a call: a method and its arguments; a time is mostly left out, sometimes near now, sometimes no time."""
    times: dict[str, Any] = {}
    kind = draw(st.sampled_from(["now", "now", "now", "near", "odd"]))
    if kind == "near":
        times = {"at_ns": time.time_ns() + draw(OFFSETS)}
    elif kind == "odd":
        times = {"at_ns": draw(ODD_TIMES)}
    return draw(st.sampled_from(names)), draw(COUNTS), draw(CHOICES), times, draw(REASONS)


class AnyServer(RuleBasedStateMachine):
    """Whatever it does: one outcome per arrival, nothing active at the end, no exception, no negative, no NaN."""

    requests: Bundle[Arrival] = Bundle("requests")
    contexts: Bundle[Context] = Bundle("contexts")

    def __init__(self) -> None:
        super().__init__()
        # Processors that other tests left behind would take requests of ours.
        self.others, runtime()._processors[:] = list(runtime()._processors), []
        self.telemetry = Telemetry()
        self.processor = self.telemetry.processor
        self.arrivals: list[Arrival] = []
        self.alive = True

    # ------------------------------------------------------------------------------------------------- requests

    @initialize(target=requests)
    def first(self) -> Arrival:
        """Open a request, so that there is one to act on."""
        return self._opened(Arrival(self.telemetry.request(model="tiny")))

    @rule(
        target=requests,
        shape=st.sampled_from(["default", "default", "preprocess_first", "pooling"]),
        deadline=st.sampled_from([None, 0.000001, 60.0, -1.0]),
        arrival=st.one_of(st.just("now"), OFFSETS, ODD_TIMES),
    )
    def open(self, shape: str, deadline: float | None, arrival: Any) -> Arrival:
        """Open a request of any shape, whose arrival is any time."""
        times = {} if arrival == "now" else {"arrived_at_ns": arrival}
        if isinstance(arrival, int) and not isinstance(arrival, bool) and abs(arrival) < SECOND * 10:
            times = {"arrived_at_ns": time.time_ns() + arrival}
        return self._opened(Arrival(self.telemetry.request(model="tiny", shape=shape, deadline=deadline, **times)))

    def _opened(self, arrival: Arrival) -> Arrival:
        arrival.counted = self.alive
        self.arrivals.append(arrival)
        return arrival

    @rule(arrival=requests, action=actions(MARKS))
    def mark(self, arrival: Arrival, action: tuple[Any, ...]) -> None:
        """Mark anything at any time."""
        if arrival.handle is not None:
            act(arrival.handle, *action)

    @rule(arrival=requests)
    def run_through(self, arrival: Arrival) -> None:
        """Mark what leads to decode, so that the interesting states are reached often."""
        if arrival.handle is not None:
            arrival.handle.admit()
            arrival.handle.input_ready()
            arrival.handle.token()

    @rule(arrival=requests, action=actions(ENDS))
    def end(self, arrival: Arrival, action: tuple[Any, ...]) -> None:
        """End it in any way, once or again."""
        if arrival.handle is not None:
            act(arrival.handle, *action)

    @rule(arrival=requests, error=st.sampled_from([None, ValueError(), TimeoutError(), GeneratorExit()]))
    def leave(self, arrival: Arrival, error: BaseException | None) -> None:
        """Leave its block, with or without an exception."""
        if arrival.handle is not None:
            arrival.handle.__enter__()
            arrival.handle.__exit__(None if error is None else type(error), error, None)

    @rule(arrival=requests, action=actions(MARKS + ENDS), skew=OFFSETS)
    def record(self, arrival: Arrival, action: tuple[Any, ...], skew: int) -> None:
        """Hand over what an engine marked by its own clock, in any order."""
        name, count, choice, _, reason = action
        event = {"event": name, "timestamp": time.time_ns() + skew, "count": count, "choice": choice, "reason": reason}
        if arrival.handle is not None:
            arrival.handle.record([event, {"event": "no such thing"}, None])

    @rule(arrival=consumes(requests))
    def drop(self, arrival: Arrival) -> None:
        """Lose the handle."""
        arrival.drop()

    # ------------------------------------------------------------------------------------------------- blocks, contexts

    @rule(arrival=requests, name=st.sampled_from(STAGES), fails=st.booleans(), inside=actions(MARKS + ENDS))
    def stage(self, arrival: Arrival, name: str, fails: bool, inside: tuple[Any, ...]) -> None:
        """Spend a block in a stage, right or wrong, in which anything is marked."""
        if arrival.handle is None:
            return
        try:
            with arrival.handle.stage(name):
                act(lifecycle.current(), *inside)
                if fails:
                    raise KeyError(name)
        except KeyError:
            pass

    @rule(target=contexts, arrival=requests)
    def copy_a_context(self, arrival: Arrival) -> Context:
        """Copy the context inside a stage, as every task that is started there does."""
        if arrival.handle is None:
            return copy_context()
        with arrival.handle.stage("queue"):
            return copy_context()

    @rule(context=contexts, action=actions(MARKS + ENDS), elsewhere=st.booleans())
    def act_in_a_context(self, context: Context, action: tuple[Any, ...], elsewhere: bool) -> None:
        """Mark on whatever is current in a copied context, here or in another thread."""

        def work() -> None:
            context.run(lambda: act(lifecycle.current(), *action))

        self._together([work]) if elsewhere else work()

    @rule(arrival=requests, items=st.integers(0, 3), close=st.booleans())
    def stream(self, arrival: Arrival, items: int, close: bool) -> None:
        """Stream some items; then close the stream, or leave it lying."""
        if arrival.handle is None:
            return
        stream = arrival.handle.stream(iter(range(items)))
        for _ in zip(range(2), stream, strict=False):
            pass
        stream.close() if close else arrival.streams.append(stream)

    # ------------------------------------------------------------------------------------------------- threads, garbage

    @rule(arrival=requests, several=st.lists(actions(MARKS + ENDS), min_size=2, max_size=6))
    def race(self, arrival: Arrival, several: list[tuple[Any, ...]]) -> None:
        """Do several things to one request at the same moment."""
        handle = arrival.handle
        if handle is not None:
            self._together([lambda action=action: act(handle, *action) for action in several])

    def _together(self, work: list[Any]) -> None:
        errors: list[BaseException] = []
        barrier = threading.Barrier(len(work))

        def run(call: Any) -> None:
            barrier.wait()
            try:
                call()
            except BaseException as error:  # noqa: BLE001  # an exception in a thread is what this looks for
                errors.append(error)

        threads = [threading.Thread(target=run, args=(call,)) for call in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []

    @rule()
    def step(self) -> None:
        """Mark a token for every request there is, ended ones too."""
        lifecycle.step([arrival.handle for arrival in self.arrivals if arrival.handle is not None])

    @rule()
    def collect_garbage(self) -> None:
        """Run the garbage collector."""
        gc.collect()

    @rule()
    def collect_metrics(self) -> None:
        """Read the metrics."""
        self.telemetry.points()

    # ------------------------------------------------------------------------------------------------- the processor

    @rule()
    def shut_down(self) -> None:
        """Shut the processor down; a server may go on."""
        self.processor.shutdown()
        self.alive = False
        assert [arrival for arrival in self.arrivals if self._is_open(arrival)] == []

    def _is_open(self, arrival: Arrival) -> bool:
        return (
            arrival.handle is not None
            and arrival.handle.report is None
            and arrival.handle._tracked.assessor is not None
        )

    @rule(adopts=st.booleans())
    def start_anew(self, adopts: bool) -> None:
        """Put another processor in place of one that was shut down: a request that ends from then on is its own."""
        if self.alive:
            return
        gc.collect()
        self.telemetry.points()
        between = [one for one in self.arrivals if one.handle is not None and one.handle.report is None]
        if adopts:
            self._start_processor()
        for arrival in between:
            arrival.handle.cancel()
            arrival.counted = adopts
        if not adopts:
            self._start_processor()

    def _start_processor(self) -> None:
        self.processor = LifecycleSpanProcessor(meter_provider=self.telemetry.meter_provider)
        self.telemetry.tracer_provider.add_span_processor(self.processor)
        self.alive = True

    # ------------------------------------------------------------------------------------------------- what must hold

    def teardown(self) -> None:
        """Stop the server, and look at what is left."""
        try:
            self.start_anew(adopts=True)
            for arrival in self.arrivals:
                arrival.drop()
            gc.collect()
            self.telemetry.points()
            self.processor.shutdown()
            self._check_spans()
            self._check_points()
            assert [one for one in runtime().snapshot() if one.assessor is self.processor] == []
        finally:
            self.telemetry.shutdown()
            runtime()._processors[:] = self.others

    def _check_spans(self) -> None:
        spans = self.telemetry.spans()
        roots = [span for span in spans if "inference.outcome" in span["attributes"]]
        assert len({span["span_id"] for span in roots}) == len(roots) == len(self.arrivals)
        assert [span for span in spans if span["end_ns"] < span["start_ns"]] == []
        numbers = [value for span in spans for value in span["attributes"].values() if isinstance(value, (int, float))]
        assert [value for value in numbers if not (math.isfinite(value) and value >= 0)] == []

    def _check_points(self) -> None:
        points = self.telemetry.points()
        by_name: dict[str, float] = {}
        for point in points:
            value = point["count"] if point["value"] is None else point["value"]
            by_name[point["metric"]] = by_name.get(point["metric"], 0) + (value or 0)
            numbers = [point["value"], point["sum"], point["min"], point["max"]]
            assert [one for one in numbers if one is not None and not (math.isfinite(one) and one >= 0)] == []
        counted = sum(arrival.counted for arrival in self.arrivals)
        assert by_name.get("inference.requests", 0) == counted
        assert by_name.get("inference.active_requests", 0) == 0
        assert by_name.get("inference.time_to_first_token", 0) <= counted
        assert by_name.get("inference.request.duration", 0) <= counted
