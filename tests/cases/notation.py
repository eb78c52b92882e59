"""How a case is written down: a script of events with times in seconds, and what must come of it.

A script is ``event time`` items, separated by commas::

    arrive 0, admit 0.1, input_ready 0.2, first_token 0.5, token 0.6 n=3 c=1, fail 0.7 queue_full, token 0.8 (illegal)

``n`` is the number of tokens (``n=?``: unknown), ``c`` the choice.  ``(illegal)`` marks what a checker must refuse, and
``(lost)`` a legal event whose time cannot be: the live API moves on without the time, a replay refuses it.
Times are exact decimals: they become integer nanoseconds without a rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, Literal

from otel_lifecycle.errors import LifecycleError

NS: Final = 10**9
NOTES: Final = frozenset({"client_disconnected", "delivered", "prefill_chunk"})
METRICS: Final = (
    "queue_wait",
    "preprocessing",
    "prefill",
    "ttft",
    "tpot",
    "decode_time",
    "token_span",
    "e2e",
    "streamed_tokens",
)
TERMINALS: Final = ("complete", "cancel", "timeout", "fail")
Fate = Literal["legal", "illegal", "lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One event of a script; ``ns`` is nanoseconds after the script's zero."""

    event: str
    ns: int
    count: int | None = 1
    choice: int = 0
    reason: str | None = None
    fate: Fate = "legal"

    @property
    def moves(self) -> bool:
        """Whether it is an event of the lifecycle, and not a note or a frame without a token."""
        return self.event not in NOTES and not (self.event in ("token", "first_token") and self.count == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One case: its events, and the outcome worked out by hand.  Durations in seconds; what is left out is None.

    ``stage`` and ``share`` are what :func:`classify_request_outcome` says; ``largest`` is the largest stage where that
    is ``mixed``.  ``refused`` is the error a replay ends in, ``violations`` what the live API counts of the same.
    ``preempted`` is time per interrupted state, ``attributes`` are span attributes the case is about.
    """

    id: str
    script: str
    metrics: Mapping[str, float]
    status: str = "completed"
    stage: str | None
    share: float | None = None
    largest: str | None = None
    itl: tuple[float, ...] = ()
    shape: str = "default"
    preempted: Mapping[str, float] = field(default_factory=dict)
    refused: type[LifecycleError] | None = None
    violations: tuple[str, ...] = ()
    wasted: int = 0
    error_type: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> list[Step]:
        """The events of the script."""
        return [parse(item) for item in self.script.split(",")]

    @property
    def completed(self) -> bool:
        """Whether the request ended normally."""
        return self.status == "completed"

    @property
    def failure_stage(self) -> str | None:
        """The state an abnormal end came in."""
        return None if self.completed else self.stage

    def metric(self, name: str) -> float | None:
        """Return a metric in seconds, None where it is absent."""
        return self.metrics.get(name)


def parse(item: str) -> Step:
    """Read one item of a script."""
    event, time, *options = item.split()
    values: dict[str, Any] = {}
    for option in options:
        if option in ("(illegal)", "(lost)"):
            values["fate"] = option[1:-1]
        elif option.startswith("n="):
            values["count"] = None if option == "n=?" else int(option[2:])
        elif option.startswith("c="):
            values["choice"] = int(option[2:])
        else:
            values["reason"] = option
    return Step(event=event, ns=to_ns(time), **values)


def to_ns(seconds: str | float) -> int:
    """Return seconds as whole nanoseconds; the decimals as written are what counts."""
    return int((Decimal(str(seconds)) * NS).to_integral_value())


def std(queue: str, preprocessing: str, prefill: str) -> str:
    """Return the first four events of a request that arrives at 0 and whose stages last as long as given."""
    admit = Decimal(queue)
    ready = admit + Decimal(preprocessing)
    first = ready + Decimal(prefill)
    return f"arrive 0, admit {admit}, input_ready {ready}, first_token {first}"


def tokens(first: str, last: str, every: str) -> str:
    """Return single tokens at a steady pace, both ends included."""
    start, stop, step = Decimal(first), Decimal(last), Decimal(every)
    return ", ".join(f"token {start + index * step}" for index in range(int((stop - start) / step) + 1))


def choices(*ends: tuple[str, str], count: int) -> str:
    """Return the merged tokens of several choices, each with ``count`` of them evenly from its first to its last."""
    times = [
        (Decimal(first) + index * (Decimal(last) - Decimal(first)) / (count - 1), choice)
        for choice, (first, last) in enumerate(ends)
        for index in range(count)
    ]
    items = [f"token {time} c={choice}" for time, choice in sorted(times)]
    return ", ".join(["first_" + items[0], *items[1:]])
