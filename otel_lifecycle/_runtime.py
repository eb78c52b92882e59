"""The one object of a process: its processors, its open requests, and what both of them look up.

The request API and the processor never import each other; they meet here.  A processor finds the requests of a span by
the :class:`Claim` in the context that the span is started with; a request finds its processor by that claim, or by
:meth:`Runtime.assessor_for` when its span was not sampled and no processor saw it.

A :class:`Runtime` is made at import and replaced by a new one in a forked child, which inherits the processors and the
switches and nothing that was open.  Whatever more than one thread may touch is a single operation on a dict or deque:
no lock is held here, so that a finalizer, a signal handler or a metric callback can come in at any point.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter_ns
from typing import Any, Final, Generic, TypeAlias, TypeVar

from opentelemetry.context import Context, create_key
from opentelemetry.trace import SpanContext

from otel_lifecycle._assessor import Assessor, RegisteredRequest
from otel_lifecycle._clock_offset import ClockOffset
from otel_lifecycle._core.endings import ENDINGS
from otel_lifecycle._core.engines import EngineLogs
from otel_lifecycle._log import say

T = TypeVar("T")

Neighbour: TypeAlias = tuple[SpanContext, str | None]
"""One request as another one names it in a link: its span, and its request id as far as it is known."""

SWEEP_INTERVAL_NS: Final = 1_000_000_000
"""Between two sweeps of the open requests that :meth:`Runtime.housekeep` makes."""

SWEEP_SLICE: Final = 128
"""Open requests that one call on a serving thread sweeps; thousands at once would delay the server."""

DROPPED_SLICE: Final = 2
"""Dropped requests that one call on a serving thread ends: more than one call can open, so they do not pile up."""

MAX_FOREIGN_SEEN: Final = 4096
"""Foreign spans remembered, so that two processors do not count one twice; both see it within one ``span.end()``."""


# A list and no class: hardly anything else that a request does costs as much as making an object of one.
Claim: TypeAlias = "list[Assessor]"
"""Where the first processor that sees a span start puts itself: the request is its own."""


def take(claim: Claim, assessor: Assessor) -> bool:
    """Take the request unless another processor has; return whether it was still free."""
    if claim:
        return False
    claim.append(assessor)
    return True


_CLAIM: Final = create_key("otel_lifecycle-claim")


def with_claim(context: Context, claim: Claim) -> Context:
    """Return the context to start a request span in."""
    # Fewer copies than `set_value` makes, and by two steps: a context in an expression with a key is copied one by one.
    values: dict[str, object] = {**context}
    values[_CLAIM] = claim
    return Context(values)


def claim_in(context: Context | None) -> Claim | None:
    """Return the claim of the request whose span starts in this context."""
    claim: Any = None if context is None else context.get(_CLAIM)
    return claim  # type: ignore[no-any-return]  # nobody else has the key


def _nothing() -> None:
    """Stand for a reference to what was not made yet."""


class ProviderCache(Generic[T]):
    """Something made once for each provider, which is held weakly."""

    __slots__ = ("_made", "_recent")

    def __init__(self) -> None:
        self._made: weakref.WeakKeyDictionary[Any, T] = weakref.WeakKeyDictionary()
        # The last that was asked for, and what was made for it.  Nearly every program has one provider, and a weak
        # dictionary costs ten times as much.
        self._recent: tuple[Callable[[], object], Callable[[], T | None]] = (object, _nothing)

    def get(self, provider: Any, make: Callable[[Any], T]) -> T:
        """Return what was made for the provider; for one that cannot be hashed or weakly held, make it each time."""
        recent, made = self._recent
        known = made() if recent() is provider else None
        if known is not None:
            return known
        try:
            known = self._made.get(provider)
            if known is None:
                # Two threads may make one each; setdefault keeps the first for both.
                known = self._made.setdefault(provider, make(provider))
            self._recent = (weakref.ref(provider), weakref.ref(known))
        except TypeError:
            return make(provider) if known is None else known
        return known


class Runtime:
    """What this process keeps of requests, processors and providers.

    ``open_requests``: by their ticket, which is the next of ``tickets``, every request that has not ended, and every
    ended one whose backend still produces tokens.
    ``dropped``: requests whose handle is gone; a finalizer appends there and does nothing else.  ``record_exceptions``:
    whether an exception leaves its message and stack on the span, or its type alone.  ``endings``: how an exception
    ends a request; ``configure(endings=)`` extends it.  ``engines``: the interval logs of the engines.  ``sweep_due``:
    the reading of the clock from which the next sweep of the open requests is due.
    """

    def __init__(self) -> None:
        self.open_requests: dict[int, RegisteredRequest] = {}
        self.dropped: deque[RegisteredRequest] = deque()
        self.sources: ProviderCache[Any] = ProviderCache()
        self.record_exceptions = False
        self.endings = ENDINGS
        self.engines = EngineLogs()
        self.forked = False
        self.clock_offset = ClockOffset()
        # `next` on it is one operation, so two threads never get the same ticket.
        self.tickets = itertools.count(1)
        # Replaced after each change of the two below, so that an answer of `assessor_for` can be kept until then.
        self.registry = object()
        self._processors: list[weakref.ref[Any]] = []
        self._by_provider: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()
        self._foreign_seen: dict[tuple[int, int], object] = {}
        self._foreign_order: deque[tuple[int, int]] = deque()
        self.sweep_due = 0
        # Which requests the current sweep has yet to visit.
        self._to_sweep: deque[int] = deque()
        # One for each thread: other threads may sweep at the same time, each over its own slice.
        self._busy = threading.local()

    # Processors.

    def add_processor(self, processor: Assessor) -> None:
        """Register a processor until it is removed or garbage-collected."""
        _hook_forks()
        self._processors.append(weakref.ref(processor, self._processors_without))
        self.registry = object()

    def remove_processor(self, processor: Assessor) -> None:
        """Forget a processor that was shut down."""
        for reference in [known for known in self._processors if known() is processor]:
            self._processors_without(reference)
        for provider, reference in list(self._by_provider.items()):
            if reference() is processor:
                self._by_provider.pop(provider, None)
        self.registry = object()

    def _processors_without(self, reference: weakref.ref[Any]) -> None:
        try:
            self._processors.remove(reference)
        except ValueError:  # Another thread, or the collector, was first.
            return

    def processors(self) -> list[Assessor]:
        """Return the live processors, the oldest first."""
        alive = (reference() for reference in list(self._processors))
        return [processor for processor in alive if processor is not None]

    def seen_with(self, provider: object, processor: Assessor) -> None:
        """Note that spans of this tracer provider reach that processor."""
        try:
            known = self._by_provider.get(provider)
            if known is None or known() is not processor:
                self._by_provider[provider] = weakref.ref(processor)
                self.registry = object()
        except TypeError:  # A provider that takes no weak reference; its unsampled requests go to the oldest processor.
            return

    def assessor_for(self, provider: object) -> Assessor | None:
        """Return the processor for a request whose span no processor has seen: the provider's, else the oldest."""
        try:
            known = self._by_provider.get(provider)
        except TypeError:
            known = None
        own = None if known is None else known()
        if own is not None:
            return own  # type: ignore[no-any-return]  # only processors are put in
        alive = self.processors()
        return alive[0] if alive else None

    # Requests.

    def close_request(self, ticket: int) -> RegisteredRequest | None:
        """Take a request off the register, and return it if it was there."""
        return self.open_requests.pop(ticket, None)

    def snapshot(self) -> list[RegisteredRequest]:
        """Return the registered requests."""
        return _copied(self.open_requests.values())

    def end_all(self, assessor: Assessor) -> None:
        """End every open request of a processor: as abandoned if its handle is gone, else with reason shutdown."""
        self.housekeep(now=True)
        for request in self.snapshot():
            if request.assessor is assessor:
                request.end_by_shutdown()

    def first_sight(self, trace_id: int, span_id: int) -> bool:
        """Return whether a foreign span is seen for the first time; the last 4096 are remembered.

        The dict decides between two threads in one operation.  Its order of insertion is kept apart, because the first
        key of a dict cannot be found while another thread changes it.
        """
        key, mine = (trace_id, span_id), object()
        if self._foreign_seen.setdefault(key, mine) is not mine:
            return False
        self._foreign_order.append(key)
        if len(self._foreign_order) > MAX_FOREIGN_SEEN:
            self._foreign_seen.pop(self._foreign_order.popleft(), None)
        return True

    # Housekeeping.

    def before_opening(self) -> None:
        """Keep house before another request is opened, so that dropped ones end at least as fast as new ones come."""
        self.housekeep()
        if self.forked:
            self.warn_after_fork()

    def housekeep(self, *, now: bool = False) -> None:
        """End the requests whose handle is gone and, once a second or ``now``, sweep the open ones.

        Without ``now`` this is a serving thread's call: it takes a slice of both, and the next calls take the rest.
        Ending one keeps house too: a thread that is at it already goes no deeper, however many were dropped at once.
        """
        # The usual case: there is nothing to do.
        if not now and not self.dropped and perf_counter_ns() < self.sweep_due:
            return
        if getattr(self._busy, "here", False):
            return
        try:
            self._busy.here = True
            clock = perf_counter_ns()
            if now:
                self._drain(sys.maxsize)
                self.sweep_due = clock + SWEEP_INTERVAL_NS
                self._to_sweep.clear()
                for request in self.snapshot():
                    _guarded(partial(request.sweep, clock, thorough=True))
            else:
                self._drain(DROPPED_SLICE)
                if clock >= self.sweep_due:
                    self._sweep_slice(clock)
        finally:
            self._busy.here = False

    def _sweep_slice(self, clock: int) -> None:
        """Sweep the next open requests; the sweep stays due until it has visited all."""
        left = self._to_sweep
        if not left:
            left.extend(_copied(self.open_requests))
        for _ in range(SWEEP_SLICE):
            try:
                request = self.open_requests.get(left.popleft())
            except IndexError:  # All had their turn, this one's or another thread's.
                break
            if request is not None:
                _guarded(partial(request.sweep, clock, thorough=False))
        if not left:
            self.sweep_due = clock + SWEEP_INTERVAL_NS

    def _drain(self, most: int) -> None:
        for _ in range(most):
            try:
                request = self.dropped.popleft()
            except IndexError:  # Empty, or another thread took the last one.
                return
            _guarded(request.abandoned)

    # Forks.

    def in_child(self) -> Runtime:
        """Return the runtime of a forked child: it has the processors and switches, but no open request."""
        child = Runtime()
        child.record_exceptions, child.endings = self.record_exceptions, self.endings
        child.engines = self.engines.fresh()
        child.forked = True
        for processor in self.processors():
            child.add_processor(processor)
        for provider, reference in list(self._by_provider.items()):
            child._by_provider[provider] = reference
        return child

    def warn_after_fork(self) -> None:
        """Warn once, in a forked child that serves requests, that its processors count the parent's requests too."""
        if not self.forked:
            return
        self.forked = False
        if any(not processor.survives_fork for processor in self.processors()):
            say(
                "fork",
                "this process was forked after its LifecycleSpanProcessor was made: it exports its parent's counts "
                "again. Set the providers up after the fork (gunicorn: post_fork; uvicorn: in the worker), or use "
                "configure()",
            )


def _copied(view: Iterable[T]) -> list[T]:
    while True:
        try:
            return list(view)
        except RuntimeError:  # pragma: no cover  # a garbage collection inside list() opened or closed one
            continue


def _guarded(call: Callable[[], None]) -> None:
    """Call; a request that cannot be swept stops neither the sweep of the others nor the server."""
    try:
        call()
    except Exception as error:  # noqa: BLE001  # it runs inside the server's own calls
        say("housekeep", "a request could not be swept", level=logging.ERROR, error=error)


class _Process:
    """Where the runtime of this process is found, and whether forks are watched."""

    __slots__ = ("hooked", "runtime")

    def __init__(self) -> None:
        self.runtime = Runtime()
        self.hooked = False


_process: Final = _Process()


def runtime() -> Runtime:
    """Return the runtime of this process."""
    return _process.runtime


def _hook_forks() -> None:
    # Not at import: a program that merely imports the package gets no hook.
    if not _process.hooked:
        _process.hooked = True
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=start_in_child)


def start_in_child() -> None:
    """Give a forked child a runtime of its own, without the requests that its parent will end."""
    parent = _process.runtime
    # First, so that requests which the child opens are not registered in its parent's runtime.
    _process.runtime = parent.in_child()
    for request in parent.snapshot():
        request.disown()
    parent.dropped.clear()
