"""Providers that can be replaced while others hold them.

The global providers of a process can be set once.  A forked child needs different ones, with an instance id and counts
of its own, while libraries hold tracers and instruments that they got from the parent's.  What ``configure()`` installs
therefore delegates: a tracer or an instrument asks, when it is used, for the provider of its process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentelemetry.metrics import (
    Counter,
    Histogram,
    Meter,
    NoOpMeter,
    ObservableCounter,
    ObservableGauge,
    ObservableUpDownCounter,
    UpDownCounter,
)
from opentelemetry.sdk import metrics as sdk_metrics
from opentelemetry.sdk import trace as sdk_trace
from opentelemetry.trace import Span, Tracer

from otel_lifecycle._sdk_child_spans import Standing

Gauge: Any = type(NoOpMeter("otel_lifecycle").create_gauge("gauge")).__base__
"""The API's class of gauges, which has no public name: its no-op gauge derives from it."""


class Delegate:
    """The real thing behind a delegating one, made anew whenever its source is another."""

    __slots__ = ("_made", "_make", "_of", "_source")

    def __init__(self, source: Callable[[], Any], make: Callable[[Any], Any]) -> None:
        self._source = source
        self._make = make
        self._of: Any = None
        self._made: Any = None

    def __call__(self) -> Any:
        """Return the real thing of this process."""
        # No lock: _made is written before _of, so a thread that sees the new source also sees what was made for it.
        # Two threads may both make one; the SDK merges what instruments of one name record.
        source = self._source()
        if source is not self._of:
            self._made = self._make(source)
            self._of = source
        return self._made


class ForkSafeTracerProvider(sdk_trace.TracerProvider):
    """A tracer provider whose real one may be replaced.

    It is an instance of the SDK's class, because other libraries check for that class and set up a provider of their
    own if they do not find it.  It never runs the SDK's constructor: every attribute except its own is the real
    provider's.
    """

    def __init__(self, source: Callable[[], Any]) -> None:
        # object's own method, because __setattr__ below writes to the real provider.
        object.__setattr__(self, "_source", source)

    def get_tracer(self, *arguments: Any, **named: Any) -> Tracer:
        """Return a tracer that makes its spans by the provider of the process it is used in."""
        return _Tracer(Delegate(self._source, lambda provider: provider.get_tracer(*arguments, **named)))

    # Not __getattr__: the methods of the SDK's class would be found first, and use attributes that were never set.
    def __getattribute__(self, name: str) -> Any:
        if name in ("get_tracer", "_source"):
            return object.__getattribute__(self, name)
        return getattr(object.__getattribute__(self, "_source")(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._source(), name, value)


class _Tracer(Standing, Tracer):
    def __init__(self, real: Delegate) -> None:
        self._real = real

    def real(self) -> Any:
        return self._real()

    def start_span(self, *arguments: Any, **named: Any) -> Span:
        span: Span = self._real().start_span(*arguments, **named)
        return span

    def start_as_current_span(self, *arguments: Any, **named: Any) -> Any:
        return self._real().start_as_current_span(*arguments, **named)


class ForkSafeMeterProvider(sdk_metrics.MeterProvider):
    """A meter provider whose real one may be replaced; like :class:`ForkSafeTracerProvider`, of the SDK's class."""

    def __init__(self, source: Callable[[], Any]) -> None:
        object.__setattr__(self, "_source", source)
        object.__setattr__(self, "_observables", [])

    def remake_observables(self) -> None:
        """Give the observables made so far to the real provider as it is now."""
        for observable in self._observables:
            observable()

    def get_meter(self, *arguments: Any, **named: Any) -> Meter:
        """Return a meter whose instruments record into the provider of the process they are used in."""
        name = str(arguments[0] if arguments else named.get("name", ""))
        delegate = Delegate(self._source, lambda provider: provider.get_meter(*arguments, **named))
        return _Meter(name, delegate, self._observables)

    def __getattribute__(self, name: str) -> Any:
        if name in ("get_meter", "remake_observables", "_source", "_observables"):
            return object.__getattribute__(self, name)
        return getattr(object.__getattribute__(self, "_source")(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._source(), name, value)


class _Meter(Meter):
    def __init__(self, name: str, real: Delegate, observables: list[Delegate]) -> None:
        super().__init__(name)
        self._real = real
        self._observables = observables

    def _behind(self, create: str, arguments: Any, named: Any) -> Delegate:
        delegate = Delegate(self._real, lambda meter: getattr(meter, create)(*arguments, **named))
        # At once, so that an invalid name is reported where the app creates the instrument.
        delegate()
        if create.startswith("create_observable"):
            # Nothing ever calls an observable, so it has to be made together with the provider.
            # Never removed; the SDK keeps its observables for the life of a provider, too.
            self._observables.append(delegate)
        return delegate

    def create_counter(self, *arguments: Any, **named: Any) -> Counter:
        return _Counter(self._behind("create_counter", arguments, named))

    def create_up_down_counter(self, *arguments: Any, **named: Any) -> UpDownCounter:
        return _UpDownCounter(self._behind("create_up_down_counter", arguments, named))

    def create_histogram(self, *arguments: Any, **named: Any) -> Histogram:
        return _Histogram(self._behind("create_histogram", arguments, named))

    def create_gauge(self, *arguments: Any, **named: Any) -> Any:
        return _Gauge(self._behind("create_gauge", arguments, named))

    def create_observable_counter(self, *arguments: Any, **named: Any) -> ObservableCounter:
        return _ObservableCounter(self._behind("create_observable_counter", arguments, named))

    def create_observable_up_down_counter(self, *arguments: Any, **named: Any) -> ObservableUpDownCounter:
        return _ObservableUpDownCounter(self._behind("create_observable_up_down_counter", arguments, named))

    def create_observable_gauge(self, *arguments: Any, **named: Any) -> ObservableGauge:
        return _ObservableGauge(self._behind("create_observable_gauge", arguments, named))


class _Instrument:
    """An instrument that records into the one of its process; named as the API's own proxies name theirs."""

    def __init__(self, real: Delegate) -> None:
        self._real = real

    @property
    def _real_instrument(self) -> Any:
        return self._real()


class _Adding(_Instrument):
    def add(self, *arguments: Any, **named: Any) -> None:
        """Add to the instrument of this process."""
        self._real().add(*arguments, **named)


class _Counter(_Adding, Counter): ...


class _UpDownCounter(_Adding, UpDownCounter): ...


class _Histogram(_Instrument, Histogram):
    def record(self, *arguments: Any, **named: Any) -> None:
        """Record into the instrument of this process."""
        self._real().record(*arguments, **named)


class _Gauge(_Instrument, Gauge):  # type: ignore[misc]  # the class is not known before run time
    def set(self, *arguments: Any, **named: Any) -> None:
        """Set the instrument of this process."""
        self._real().set(*arguments, **named)


class _ObservableCounter(_Instrument, ObservableCounter): ...


class _ObservableUpDownCounter(_Instrument, ObservableUpDownCounter): ...


class _ObservableGauge(_Instrument, ObservableGauge): ...
