"""What a request, its processor and the runtime need of each other, as protocols.

The request API and the processor never import each other: each knows the other by what is written here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from opentelemetry.context import Context

from otel_lifecycle._core.attributes import AttributeValue
from otel_lifecycle._core.labels import RequestLabels
from otel_lifecycle._core.usual import Rules, UsualEnd, UsualFields
from otel_lifecycle._core.usual_attributes import UsualNotes
from otel_lifecycle._core.verdict import Finished, Verdict


class Assessor(Protocol):
    """What a request needs of the processor it belongs to.

    ``take_usual``: takes a usual request that no span shows, to be judged later, and how many gaps it holds.
    """

    strict: bool
    token_times: bool
    compat: str | None
    gen_ai_usage: bool
    interference: bool
    survives_fork: bool
    rules: Rules
    take_usual: Callable[[UsualFields, int], None]

    def assess(self, finished: Finished, context: Context | None) -> Verdict:
        """Judge a finished request and record its metrics; ``context`` is that of its span."""

    def judge_usual(self, end: UsualEnd, notes: UsualNotes) -> dict[str, AttributeValue]:
        """Judge a usual request and record its metrics; return the attributes of its span."""

    def record_violation(self, kind: str, labels: RequestLabels) -> None:
        """Count a violation that came after the span was closed."""

    def record_wasted(self, tokens: int, labels: RequestLabels, context: Context | None) -> None:
        """Count tokens produced after the end."""

    def record_lag(self, lag_ns: int, labels: RequestLabels, context: Context | None) -> None:
        """Record how long after the end the last token was produced."""

    def record_gaps(self, gaps: list[int], labels: RequestLabels, context: Context | None) -> None:
        """Record gaps (nanoseconds) of a stream that goes on."""

    def record_step(
        self, kind: str, seconds: float, requests: int, labels: RequestLabels, context: Context | None
    ) -> None:
        """Record an iteration of an engine."""

    def record_startup(self, phase: str, seconds: float, model: str | None, context: Context | None) -> None:
        """Record a cold-start phase."""

    def warn_twice(self) -> None:
        """Say, once, that a request was seen by two processors."""


class RegisteredRequest(Protocol):
    """What the runtime needs of a request that has not ended."""

    @property
    def assessor(self) -> Assessor | None:
        """The processor it belongs to."""

    @property
    def labels(self) -> RequestLabels:
        """What its metrics are labelled with."""

    def active(self) -> tuple[str, int | None] | None:
        """Return its stage on the wire and its age in nanoseconds; None once it has ended."""

    def abandoned(self) -> None:
        """Its handle is gone: end it, or record what came after its end."""

    def sweep(self, now: int, *, thorough: bool) -> None:
        """Fold what has grown long; record what came after the end and has settled."""

    def end_by_shutdown(self) -> None:
        """End it as cancelled, reason ``shutdown``."""

    def disown(self) -> None:
        """Forget it in a forked child: its parent ends it."""
