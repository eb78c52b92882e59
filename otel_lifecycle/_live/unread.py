"""Telemetry that arrived without a lifecycle, with the reason and what to do about it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Final

from otel_lifecycle import semconv

# Scope names come from outside.
MAX_SCOPES: Final = 64
GEN_AI: Final = "gen_ai."


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """What arrived, how much of it, and why it is not a request; ``remedy`` is empty where nothing is wrong."""

    what: str
    count: int
    reason: str
    remedy: str

    def plain(self) -> dict[str, str | int]:
        """Return it as plain data."""
        return asdict(self)


class UnreadTelemetry:
    """Counts what is not part of a lifecycle, by the library that sent it."""

    def __init__(self) -> None:
        self._scopes: Counter[str] = Counter()
        self._model_calls: Counter[str] = Counter()
        self._unjudged = 0
        self._broken = 0
        self._logs = 0

    def span(self, scope: str, *, model_call: bool, ours: bool) -> None:
        """Count a span that is neither a request nor a stage of one."""
        if ours:
            self._unjudged += 1
            return
        name = scope if scope in self._scopes or len(self._scopes) < MAX_SCOPES else semconv.OTHER
        self._scopes[name] += 1
        self._model_calls[name] += model_call

    def broken(self) -> None:
        """Count a span without usable ids or times."""
        self._broken += 1

    def logs(self) -> None:
        """Count a batch of logs."""
        self._logs += 1

    def lines(self, rows: int, counted: int) -> list[Unread]:
        """Return the lines to show; ``rows``: requests with a span, ``counted``: requests that metrics counted."""
        found = [self._scope(name, count, rows) for name, count in self._scopes.most_common()]
        if self._unjudged:
            found.append(
                Unread(
                    what="spans of otel_lifecycle without an outcome",
                    count=self._unjudged,
                    reason="no LifecycleSpanProcessor judged them",
                    remedy="call otel_lifecycle.configure(), or add LifecycleSpanProcessor() to the tracer provider",
                )
            )
        if counted and not rows:
            found.append(
                Unread(
                    what="requests counted by metrics, without a span",
                    count=counted,
                    reason="their spans are not sampled, or not exported",
                    remedy="look at OTEL_TRACES_SAMPLER, OTEL_TRACES_EXPORTER and the sampler in the code",
                )
            )
        if self._broken:
            reason = "an id or a time cannot be right"
            found.append(
                Unread(what="broken spans", count=self._broken, reason=reason, remedy="look at their exporter")
            )
        if self._logs:
            found.append(Unread(what="batches of logs", count=self._logs, reason="logs are not read here", remedy=""))
        return found

    def _scope(self, name: str, count: int, rows: int) -> Unread:
        what = f"spans of {name or 'a tracer without a name'}"
        if self._model_calls[name]:
            return Unread(
                what=what,
                count=count,
                reason="they describe model calls (gen_ai.*), but have no lifecycle events such as arrive",
                # Once requests arrive, spans of other libraries are normal and need no action.
                remedy="" if rows else "open requests with otel_lifecycle.request(), or add the events to these spans",
            )
        return Unread(
            what=what,
            count=count,
            reason="they are not about the lifecycle; they are shown in the waterfall of a request of their trace",
            remedy="" if rows else "the server marks no request: see the first example of the README",
        )
