"""The handle of no request: what ``current()`` gives outside of one, and ``request()`` without an SDK.

How it works.  Every method that a live handle passes on is overridden, so that nothing of one is reached and a call
costs one empty function.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from opentelemetry import trace

from otel_lifecycle import _propagation
from otel_lifecycle._core.lifecycle import NOT_ARRIVED
from otel_lifecycle._request.active import Active
from otel_lifecycle._request.clock import NOW, AtNs
from otel_lifecycle._request.handle import Request
from otel_lifecycle._request.phases import Phase
from otel_lifecycle._request.stages import NO_BLOCK, StageBlock
from otel_lifecycle._request.streams import Counter

if TYPE_CHECKING:
    from typing_extensions import Self


class _Sink(list[Any]):
    """A list that keeps nothing."""

    __slots__ = ()

    def append(self, item: Any, /) -> None:
        """Drop the item."""


class NoRequest(Request):
    """What ``current()`` gives outside a request, and ``request()`` without an SDK: every call is a no-op."""

    __slots__ = ()

    def __init__(self) -> None:
        # step() appends here.
        # No call of `super().__init__`: without `_tracked` the driver sees that this handle stands for nothing.
        self._ts = _Sink()

    def __bool__(self) -> bool:
        return False

    @property
    def state(self) -> str:
        """``not_arrived``."""
        return NOT_ARRIVED

    @property
    def ended(self) -> bool:
        """False: there is nothing that could end."""
        return False

    @property
    def outcome(self) -> str | None:
        """None."""
        return None

    def admit(self, *, at_ns: AtNs = NOW) -> None: ...

    def input_ready(self, *, at_ns: AtNs = NOW) -> None: ...

    def first_token(self, n: float | None = 1, choice: int = 0, *, at_ns: AtNs = NOW) -> None: ...

    def token(self, n: float | None = 1, choice: int = 0, at_ns: AtNs = NOW) -> None: ...

    def output(self, tokens: float | None = None, *, at_ns: AtNs = NOW) -> None: ...

    def preempt(self, *, at_ns: AtNs = NOW) -> None: ...

    def resume(self, *, at_ns: AtNs = NOW) -> None: ...

    def complete(self, *, at_ns: AtNs = NOW, if_open: bool = False) -> None: ...

    def cancel(self, reason: str | None = None, *, at_ns: AtNs = NOW, if_open: bool = False) -> None: ...

    def timeout(self, reason: str | None = None, *, at_ns: AtNs = NOW, if_open: bool = False) -> None: ...

    def fail(self, error: BaseException | str | None = None, *, at_ns: AtNs = NOW, if_open: bool = False) -> None: ...

    def durations(self, stages: Mapping[str, float]) -> None: ...

    def assume_sizes(self) -> None: ...

    def finish(
        self,
        reason: object = None,
        *,
        at_ns: AtNs = NOW,
        error: object = None,
        durations: Mapping[str, float] | None = None,
    ) -> None: ...

    def event(self, name: str, attributes: Mapping[str, Any] | None = None, *, at_ns: AtNs = NOW) -> None: ...

    def active(self) -> Active:
        """Return a block that changes nothing."""
        return Active(None)

    def phase(self, name: str) -> Phase:
        """Return a block that changes nothing."""
        return Phase(None, name)

    def part(self, *, choice: int | None = None, arrived_at_ns: AtNs = NOW, **conditions: Any) -> Request:
        """Return this handle: no request has no parts."""
        return self

    def usage(
        self,
        *,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        cached_tokens: int | None = None,
    ) -> None: ...

    def set(self, **values: Any) -> None: ...

    def response(
        self,
        *,
        id: str | None = None,  # the contract's name
        model: str | None = None,
        finish_reasons: Iterable[str] | None = None,
    ) -> None: ...

    def client_disconnected(self, *, at_ns: AtNs = NOW) -> None: ...

    def delivered(self, *, at_ns: AtNs = NOW) -> None: ...

    def prefill_chunk(self, *, at_ns: AtNs = NOW) -> None: ...

    def record(self, events: Iterable[Mapping[str, Any]]) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def stage(self, name: str) -> StageBlock:
        """Do nothing around the block."""
        return NO_BLOCK

    def stream(self, iterable: Any, tokens: Counter | None = None) -> Any:
        """Return an iterator over the iterable, as the live handle does, and mark nothing."""
        return aiter(iterable) if hasattr(iterable, "__aiter__") else iter(iterable)

    def carrier(self) -> dict[str, str]:
        """The trace context that is current, as headers."""
        return _propagation.inject(trace.get_current_span().get_span_context())

    @property
    def report(self) -> dict[str, Any] | None:
        """None: there is nothing to report."""
        return None

    def __repr__(self) -> str:
        return "<Request none>"


NO_REQUEST = NoRequest()
"""The one shared no-op handle."""
