"""The budgets of a request: all that it costs, and how long its end holds the serving thread up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from statistics import median
from typing import Any, Final

from tests.benchmarks.floors import ending_by_hand
from tests.benchmarks.measure import (
    FEWEST_ROUNDS,
    Budget,
    Interval,
    Samples,
    Say,
    Trial,
    compare,
    decide,
    interleave,
    judge,
    say_costs,
    stopwatch,
    versus,
)
from tests.benchmarks.subjects import (
    BareSpans,
    Lifecycle,
    LifecycleAndRecords,
    LifecycleFallback,
    LifecyclePooling,
    LifecycleStream,
    Plain,
    Subject,
    others,
)

TOKENS: Final = 1000
LONG: Final = 16_000
REQUESTS: Final = 100
"""Requests served to one collection and export, as a server of two a second does by the SDK's default interval."""
SLICES: Final = 10
"""Turns in which these are served, and those of the one they are held against between them."""
OFTEN: Final = 5
"""How often ours does in a turn what the naive way does once, which takes sixteen times as long.  The noise of a round
was that of our tenth of a second."""

ENDS: Final = 20
LONG_ENDS: Final = 5

A_TENTH_MORE: Final = 1.1
"""What a limit is above a floor."""

OURS: Final = "otel-lifecycle, token()"


def serving(subject: Subject, tokens: int, times: int = 1) -> Trial:
    """Return a trial: serve a slice of the requests, and with every so many slices export once.

    ``times``: how often it does that; what it returns is what one slice took.
    """
    turns = count(1)

    def trial() -> int:
        spent: list[int] = []
        with stopwatch(spent):
            for _ in range(times):
                for _ in range(REQUESTS // SLICES):
                    subject.serve(tokens)
                if next(turns) % SLICES == 0:
                    subject.export()
        return spent[0] // times

    return trial


def sampled_requests(say: Say) -> Iterator[Budget]:
    """Everything a recorded request costs, its OTLP included, beside the same done by others in the same rounds."""
    yield against(say, "request_of_1_token", 2.5, recorded(), "five bare spans", tokens=1, beside=5)


def long_requests(say: Say) -> Iterator[Budget]:
    """The same of a request of 1000 tokens, against the naive way: an event and a record for each of them."""
    yield against(
        say, "request_of_1000_tokens", 0.06, recorded(), "plain OpenTelemetry", tokens=TOKENS, times=OFTEN, beside=1
    )


def recorded() -> dict[str, Subject]:
    """Return who serves requests that are recorded."""
    return {
        OURS: Lifecycle(),
        "otel-lifecycle, stream()": LifecycleStream(),
        "plain OpenTelemetry": Plain(),
        "five bare spans": BareSpans(),
        **others(),
    }


def unsampled_requests(say: Say) -> Iterator[Budget]:
    """What a request costs that the sampler leaves out: its metrics alone, OTLP of them included."""
    bare = BareSpans(sampled=False)
    token: dict[str, Subject] = {OURS: Lifecycle(sampled=False), "five unsampled bare spans": bare}
    yield against(say, "unsampled_request_of_1_token", 2, token, "five unsampled bare spans", tokens=1)
    pooling: dict[str, Subject] = {OURS: LifecyclePooling(sampled=False), "five unsampled bare spans": bare}
    yield against(say, "unsampled_pooling_request", 1.6, pooling, "five unsampled bare spans", tokens=1)


def against(
    say: Say,
    name: str,
    limit: float,
    subjects: dict[str, Subject],
    theirs: str,
    *,
    tokens: int,
    times: int = 1,
    beside: int = 1,
) -> Budget:
    """Judge ours by another's, the two in turns; then measure the rest, to be shown.

    ``times``: as of ``serving``.  ``beside``: rounds of those that are shown and not judged.
    """
    trials = {who: serving(subject, tokens, times if who == OURS else 1) for who, subject in subjects.items()}
    pair = {who: trials.pop(who) for who in (OURS, theirs)}
    samples = interleave(pair, partial(settled, limit, OURS, theirs), 30, SLICES)
    rest = interleave(trials, lambda so_far: True, 0, beside * SLICES) if trials else {}
    costs = {who: sorted(values)[len(values) // 2] / REQUESTS / 1000 for who, values in samples.items()}
    costs |= {who: values[0] / beside / REQUESTS / 1000 for who, values in rest.items()}
    row = replace(judge(name, limit, samples, OURS, theirs), costs=costs)
    say_costs(say, row)
    return row


def settled(limit: float, ours: str, theirs: str, so_far: Samples) -> bool:
    """Whether enough rounds were made."""
    return compare(so_far, ours, theirs).settled(limit)


def ends_of_requests(say: Say) -> Iterator[Budget]:
    """What the serving thread is held up by when a request ends; collections are not in it.

    No program reaches the contract's figures where a span is recorded: the limits are those of a program by hand in the
    same run, and a tenth (``floors.py``).
    """
    usual, by_hand = ending(Lifecycle(), TOKENS, ENDS), ending_by_hand(TOKENS, ENDS)
    spans = five_spans(ENDS)
    yield floored(say, "end_of_request", 1.5, (usual, spans), (by_hand, spans), ENDS)
    yield in_milliseconds(say, "end_of_request_ms", 0.15, usual, ENDS, by_hand)
    long, long_by_hand = ending(Lifecycle(), LONG, LONG_ENDS), ending_by_hand(LONG, LONG_ENDS)
    short, short_by_hand = ending(Lifecycle(), TOKENS, LONG_ENDS), ending_by_hand(TOKENS, LONG_ENDS)
    yield floored(say, "end_of_long_request", 2, (long, short), (long_by_hand, short_by_hand), LONG_ENDS)
    yield in_milliseconds(say, "end_of_long_request_ms", 1.0, long, LONG_ENDS, long_by_hand)


def fallback(say: Say) -> Iterator[Budget]:
    """The same where the SDK has other insides than those known: against the fast path of the same run.

    Through the public API every sample of a histogram is a ``record``.  A request that the sampler leaves out costs
    little more than these on the fast path, so the limit of its row is the fast path with them, and a tenth.
    """
    slow = ending(LifecycleFallback(), TOKENS, ENDS)
    yield end_budget(say, "fallback_end_of_request", 1.5, slow, ending(Lifecycle(), TOKENS, ENDS), ENDS)
    yield in_milliseconds(say, "fallback_end_of_request_ms", 1.0, slow, ENDS)
    trials = {
        "ours": serving(LifecycleFallback(sampled=False), 1),
        "theirs": serving(Lifecycle(sampled=False), 1),
        "floor": serving(LifecycleAndRecords(), 1),
    }
    yield above_floor(say, "fallback_unsampled_request", 2, trials, "theirs", REQUESTS, SLICES)


def ending(server: Lifecycle, tokens: int, ends: int) -> Trial:
    """Return a trial that ends requests of so many tokens and counts their ends alone."""

    def trial() -> int:
        spent: list[int] = []
        for _ in range(ends):
            request = server.open()
            mark(request, tokens)
            with stopwatch(spent):
                request.complete()
        server.export()
        return sum(spent)

    return trial


def mark(request: Any, tokens: int) -> None:
    """Mark tokens."""
    for _ in range(tokens):
        request.token()


def five_spans(times: int) -> Trial:
    """Return a trial that makes five bare spans so many times."""
    bare = BareSpans()

    def trial() -> int:
        spent: list[int] = []
        for _ in range(times):
            with stopwatch(spent):
                bare.serve(1)
        bare.export()
        return sum(spent)

    return trial


def end_budget(say: Say, name: str, limit: float, ours: Trial, theirs: Trial, ends: int) -> Budget:
    """Judge the end of a request by something else."""
    budget, samples = versus(name, limit, ours, theirs, allowance=20)
    say_us(say, name, samples["ours"], ends)
    say_us(say, f"{name}: what it is held against", samples["theirs"], ends)
    return budget


def floored(
    say: Say, name: str, contract: float, ours: tuple[Trial, Trial], floor: tuple[Trial, Trial], ends: int
) -> Budget:
    """Judge one trial by another: the limit is the contract's, or the floor of this run and a tenth if that is more."""
    trials = {"ours": ours[0], "theirs": ours[1], "floor": floor[0], "floor of theirs": floor[1]}
    return above_floor(say, name, contract, trials, "floor of theirs", ends)


def above_floor(
    say: Say, name: str, contract: float, trials: dict[str, Trial], floor_against: str, times: int, slices: int = 1
) -> Budget:
    """Judge ``ours`` by ``theirs`` with a limit that a floor may move; it is held against another trial of the run."""

    def limit(samples: Samples) -> float:
        return max(contract, A_TENTH_MORE * compare(samples, "floor", floor_against).figure)

    def enough(samples: Samples) -> bool:
        return compare(samples, "ours", "theirs").settled(limit(samples))

    samples = interleave(trials, enough, 20, slices)
    for who, values in samples.items():
        say_us(say, f"{name}: {who}", values, times)
    figure = compare(samples, "floor", floor_against).figure
    say(f"  {name}: the floor is {figure:.2f}, the contract says {contract:g}")
    return judge(name, limit(samples), samples, "ours", "theirs")


def say_us(say: Say, what: str, samples: list[int], divisor: int) -> None:
    """Print the median cost of one of many."""
    say(f"  {what}: {sorted(samples)[len(samples) // 2] / divisor / 1000:.1f} µs")


def in_milliseconds(say: Say, name: str, limit: float, trial: Trial, ends: int, by_hand: Trial | None = None) -> Budget:
    """Make a budget of a time; ``by_hand``: its floor, which may move the limit, as the ratio of neighbours says."""
    if by_hand is None:
        times = sorted(trial() / ends / 1e6 for _ in range(FEWEST_ROUNDS))
        say(f"  {name}: {median(times):.3f} ms")
        return Budget(name=name, limit=limit, interval=Interval(median(times), times[0], times[-1]))
    trials = {"ours": trial, "floor": by_hand}
    samples = interleave(trials, lambda so_far: compare(so_far, "ours", "floor").settled(A_TENTH_MORE), 15)
    figure, times_floor = median(samples["ours"]) / ends / 1e6, compare(samples, "ours", "floor")
    say(f"  {name}: {figure:.3f} ms, {times_floor.figure:.3f} times what it is by hand")
    limit = max(limit, A_TENTH_MORE * figure / times_floor.figure)
    low, high = (figure * bound / times_floor.figure for bound in (times_floor.low, times_floor.high))
    return decide(name, limit, Interval(figure, low, high))
