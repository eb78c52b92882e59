"""Which processors there are, which requests are open, and which handles were dropped.

The request API and the processor never import each other; they meet here.  A processor finds the requests of a span by
the :class:`Claim` in the context that the span is started with; a request finds its processor by that claim, or by
:func:`assessor_for` when its span was not sampled and no processor saw it.

Everything that more than one thread may touch is a single dict or deque operation: no lock is held here, so that a
finalizer, a signal handler or a metric callback can come in at any point.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from time import perf_counter_ns
from typing import Any, Protocol, TypeVar

from opentelemetry.context import Context, create_key, set_value

from otel_lifecycle._core.verdict import Finished, Verdict
from otel_lifecycle._log import say

_T = TypeVar("_T")

SWEEP_INTERVAL_NS = 1_000_000_000
"""Between two sweeps of the open requests that :func:`housekeep` makes."""

SWEEP_SLICE = 128
"""Open requests that one call on a serving thread sweeps; thousands at once would be felt."""

DROPPED_SLICE = 2
"""Dropped requests that one call on a serving thread ends: more than it can open meanwhile, so they do not pile up."""


class Assessor(Protocol):
    """What a request needs of the processor it belongs to."""

    strict: bool
    token_times: bool
    compat: str | None

    def assess(self, finished: Finished, context: Context | None) -> Verdict:
        """Judge a finished request and record its metrics; ``context`` is that of its span."""

    def record_violation(self, kind: str, labels: Labels) -> None:
        """Count a violation that came after the span was closed."""

    def record_wasted(self, tokens: int, labels: Labels, context: Context | None) -> None:
        """Count tokens produced after the end."""

    def record_lag(self, lag_ns: int, labels: Labels, context: Context | None) -> None:
        """Record how long after the end the last token was produced."""

    def record_gaps(self, gaps: list[int], labels: Labels, context: Context | None) -> None:
        """Record gaps (nanoseconds) of a stream that goes on."""

    def record_startup(self, phase: str, seconds: float, model: str | None, context: Context | None) -> None:
        """Record a cold-start phase."""

    def warn_twice(self) -> None:
        """Say, once, that a request was seen by two processors."""


class Labels(Protocol):
    """What the metrics of a request are labelled with."""

    @property
    def operation(self) -> str: ...
    @property
    def provider(self) -> str | None: ...
    @property
    def model(self) -> str | None: ...
    @property
    def traffic(self) -> str: ...
    @property
    def role(self) -> str: ...


class OpenRequest(Protocol):
    """What the registry needs of a request that has not ended."""

    assessor: Assessor | None

    @property
    def labels(self) -> Labels:
        """What its metrics are labelled with."""

    def active(self) -> tuple[str, int | None] | None:
        """Return its stage on the wire and its age in nanoseconds; None once it has ended."""

    def abandoned(self) -> None:
        """Its handle is gone: end it, or record what came after its end."""

    def sweep(self, now: int, *, thorough: bool) -> None:
        """Fold what has grown long; record what came after the end and has settled."""

    def end_by_shutdown(self) -> None:
        """End it as cancelled, reason ``shutdown``."""


class Claim:
    """Lets the first processor that sees a span start take the request."""

    __slots__ = ("assessor",)

    def __init__(self) -> None:
        self.assessor: Assessor | None = None

    def take(self, assessor: Assessor) -> bool:
        """Take the request unless another has; return whether it was still free."""
        if self.assessor is not None:
            return False
        self.assessor = assessor
        return True


_CLAIM = create_key("otel_lifecycle-claim")
_tickets = itertools.count(1)

open_requests: dict[int, OpenRequest] = {}
"""Every request that has not ended, and every ended one whose backend still produces tokens."""

dropped: deque[OpenRequest] = deque()
"""Requests whose handle is gone.  A finalizer appends here and does nothing else."""

MAX_FOREIGN_SEEN = 4096
_foreign_seen: dict[tuple[int, int], object] = {}

_processors: list[weakref.ref[Any]] = []
_by_provider: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()


class _Sweep:
    """When the next sweep is due and whom the one under way has left.

    And whether the fork hook is in place; whether this is a child that was not told yet.
    """

    __slots__ = ("due", "forked", "hooked", "left")

    def __init__(self) -> None:
        self.due = 0
        self.left: deque[int] = deque()
        self.hooked = False
        self.forked = False


_state = _Sweep()
_busy = threading.local()


def with_claim(context: Context, claim: Claim) -> Context:
    """Return the context to start a request span in."""
    return set_value(_CLAIM, claim, context)


def claim_in(context: Context | None) -> Claim | None:
    """Return the claim of the request whose span starts in this context."""
    claim: Any = None if context is None else context.get(_CLAIM)
    return claim  # type: ignore[no-any-return]  # nobody else has the key


def add_processor(processor: Assessor) -> None:
    """Make a processor known, until it is removed or garbage."""
    if not _state.hooked:
        _state.hooked = True
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=forget_open_requests)
    _processors.append(weakref.ref(processor, _discard))


def remove_processor(processor: Assessor) -> None:
    """Forget a processor that was shut down."""
    for reference in [known for known in _processors if known() is processor]:
        _discard(reference)


def _discard(reference: weakref.ref[Any]) -> None:
    if reference in _processors:
        _processors.remove(reference)


def seen_with(provider: object, processor: Assessor) -> None:
    """Note that spans of this tracer provider reach that processor."""
    try:
        known = _by_provider.get(provider)
        if known is None or known() is not processor:
            _by_provider[provider] = weakref.ref(processor)
    except TypeError:  # A provider that takes no weak reference; its unsampled requests go to the oldest processor.
        return


def assessor_for(provider: object) -> Assessor | None:
    """Return the processor for a request whose span none has seen: the provider's, else the oldest not shut down."""
    alive = [processor for reference in list(_processors) if (processor := reference()) is not None]
    try:
        known = _by_provider.get(provider)
    except TypeError:
        known = None
    own = None if known is None else known()
    if own is not None and own in alive:
        return own  # type: ignore[no-any-return]  # only processors are put in
    return alive[0] if alive else None


def open_request(request: OpenRequest) -> int:
    """Register a request; return its ticket."""
    ticket = next(_tickets)
    open_requests[ticket] = request
    return ticket


def close_request(ticket: int) -> None:
    """Take a request off the register."""
    open_requests.pop(ticket, None)


def snapshot() -> list[OpenRequest]:
    """Return the registered requests."""
    return _copied(open_requests.values())


def _copied(view: Iterable[_T]) -> list[_T]:
    while True:
        try:
            return list(view)
        except RuntimeError:  # pragma: no cover  # a garbage collection inside list() opened or closed one
            continue


def housekeep(*, now: bool = False) -> None:
    """End the requests whose handle is gone and, once a second or ``now``, sweep the open ones.

    Without ``now`` this is a serving thread's call: it takes a slice of both, and the next calls take the rest.  Ending
    one keeps house too: a thread that is at it already goes no deeper, however many were dropped at once.
    """
    if getattr(_busy, "here", False):
        return
    try:
        _busy.here = True
        clock = perf_counter_ns()
        if now:
            _drain(sys.maxsize)
            _state.due = clock + SWEEP_INTERVAL_NS
            _state.left.clear()
            for request in snapshot():
                _guarded(partial(request.sweep, clock, thorough=True))
        else:
            _drain(DROPPED_SLICE)
            if clock >= _state.due:
                _sweep_slice(clock)
    finally:
        _busy.here = False


def _sweep_slice(clock: int) -> None:
    """Sweep the next open requests of the sweep under way; it stays due until all had their turn."""
    left = _state.left
    if not left:
        left.extend(_copied(open_requests))
    for _ in range(SWEEP_SLICE):
        try:
            request = open_requests.get(left.popleft())
        except IndexError:  # All had their turn, this one's or another thread's.
            break
        if request is not None:
            _guarded(partial(request.sweep, clock, thorough=False))
    if not left:
        _state.due = clock + SWEEP_INTERVAL_NS


def _drain(most: int) -> None:
    for _ in range(most):
        try:
            request = dropped.popleft()
        except IndexError:  # Empty, or another thread took the last one.
            return
        _guarded(request.abandoned)


def _guarded(call: Callable[[], None]) -> None:
    """Call; one request that cannot be swept does not keep the others from it, nor the server from its work."""
    try:
        call()
    except Exception as error:  # noqa: BLE001  # it runs inside the server's own calls
        say("housekeep", "a request could not be swept", level=logging.ERROR, error=error)


def first_sight(trace_id: int, span_id: int) -> bool:
    """Return whether a foreign span is seen for the first time; of the last 4096 each is remembered."""
    key = (trace_id, span_id)
    ticket = object()
    if _foreign_seen.setdefault(key, ticket) is not ticket:
        return False
    while len(_foreign_seen) > MAX_FOREIGN_SEEN:
        _foreign_seen.pop(next(iter(_foreign_seen)), None)
    return True


def sweep_due() -> int:
    """Return the reading of the clock from which the next sweep is due."""
    return _state.due


def end_all(assessor: Assessor) -> None:
    """End every open request of a processor: those whose handle is gone as such, the others by the shutdown."""
    housekeep(now=True)
    for request in snapshot():
        if request.assessor is assessor:
            request.end_by_shutdown()


def forget_open_requests() -> None:
    """Drop what a forked child inherited: those requests are its parent's to end."""
    for request in snapshot():
        disown = getattr(request, "disown", None)
        if disown is not None:
            disown()
    open_requests.clear()
    dropped.clear()
    _state.left.clear()
    _state.forked = True


def warn_after_fork() -> None:
    """Say, once in a forked child that serves requests, that its processors still count for its parent too."""
    if not _state.forked:
        return
    _state.forked = False
    if any(getattr(processor, "survives_fork", False) is False for processor in processors().values()):
        say(
            "fork",
            "this process was forked after its LifecycleSpanProcessor was made: it exports its parent's counts again. "
            "Set the providers up after the fork (gunicorn: post_fork; uvicorn: in the worker), or use configure()",
        )


def processors() -> Mapping[int, Assessor]:
    """Return the live processors by age, the oldest first."""
    alive = (reference() for reference in list(_processors))
    return dict(enumerate(processor for processor in alive if processor is not None))
