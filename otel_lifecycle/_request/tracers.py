"""The tracer a request's spans come from, one for each provider, with the names its spans may have.

How it works.  A :class:`TracerSource` is made once for each provider and found by it.  Names from outside pass through
bounded sets; beyond a bound a name is ``_OTHER``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Tracer, TracerProvider

from otel_lifecycle import semconv
from otel_lifecycle._assessor import Assessor
from otel_lifecycle._core.lifecycle import Shape
from otel_lifecycle._core.text import MAX_LENGTH, Bounded
from otel_lifecycle._request.kinds import Kinds, RequestKind
from otel_lifecycle._runtime import Runtime, runtime
from otel_lifecycle._version import __version__
from otel_lifecycle.errors import InvalidValue

if TYPE_CHECKING:
    from otel_lifecycle._sdk_child_spans import ChildSpans

# Backends index span names, and clients choose the model.
MAX_MODELS: Final = 32
MAX_OPERATIONS: Final = 32
MAX_PHASES: Final = 64


class TracerSource:
    """A tracer and the bounded sets that keep its span names few.

    ``kinds``: of its requests, as they were read before.  The provider is held weakly: a cache must not keep a test's
    provider alive.
    """

    __slots__ = (
        "__weakref__",
        "_belongs",
        "_children",
        "_models",
        "_names",
        "_operations",
        "_phases",
        "kinds",
        "provider",
        "tracer",
    )

    def __init__(self, provider: TracerProvider) -> None:
        self.provider = _weak(provider)
        self.tracer: Tracer = provider.get_tracer(semconv.SCOPE, __version__, schema_url=semconv.SCHEMA_URL)
        self._children: ChildSpans | None = None
        self._models = Bounded(MAX_MODELS)
        self._operations = Bounded(MAX_OPERATIONS)
        self._phases = Bounded(MAX_PHASES)
        # The processor of its requests, and for which registry of the runtime that holds.
        self._belongs: tuple[object, Callable[[], Assessor | None]] = (None, _nobody)
        self._names: dict[tuple[str, str | None], str] = {}
        self.kinds = Kinds()

    def seen_with(self, assessor: Assessor) -> None:
        """Note that spans of this provider reach that processor."""
        here = runtime()
        registry, belongs = here.registry, self._belongs
        if belongs[0] is not registry or belongs[1]() is not assessor:
            here.seen_with(self.provider(), assessor)
            self._belongs = (registry, weakref.ref(assessor))

    def assessor(self, here: Runtime) -> Assessor | None:
        """Return the processor for a request whose span no processor has seen, as the runtime says."""
        # Read before the runtime is asked: an answer that another thread overtakes is not used again.
        registry, belongs = here.registry, self._belongs
        known = belongs[1]() if belongs[0] is registry else None
        if known is None:
            known = here.assessor_for(self.provider())
            if known is not None:
                self._belongs = (registry, weakref.ref(known))
        return known

    @property
    def children(self) -> ChildSpans:
        """What makes the spans of stages that are over."""
        if self._children is None:
            # Only now: a span has recorded, so the SDK is loaded.  A process without one never loads it.
            from otel_lifecycle._sdk_child_spans import ChildSpans

            self._children = ChildSpans(self.tracer)
        return self._children

    def read_kind(self, shape: Shape, values: Mapping[str, object]) -> tuple[RequestKind, list[InvalidValue]]:
        """Read the conditions that a request is given at arrival; return its kind, and what is wrong with them."""
        return self.kinds.read(shape, values, self.span_name)

    def span_name(self, operation: str, model: str | None) -> str:
        """Return ``{operation} {model}``; a model or operation beyond the bound is ``_OTHER`` there."""
        known = self._names.get((operation, model))
        if known is not None:
            return known
        named, of_model = self._operations.admit(operation), None if model is None else self._models.admit(model)
        name = named if of_model is None else f"{named} {of_model}"[:MAX_LENGTH]
        # Only what both sets have admitted, which bounds it; what is beyond them is looked up anew.
        if named == operation and of_model == model:
            self._names[operation, model] = name
        return name

    def phase_name(self, name: str) -> str:
        """Return the name of a part of a stage; beyond the bound it is ``_OTHER``."""
        return self._phases.admit(name)


def _nobody() -> None:
    """Stand for a reference to a processor that is not known."""


def _weak(provider: Any) -> Any:
    try:
        return weakref.ref(provider)
    except TypeError:
        # A class with slots may allow no weak reference.
        return lambda: provider


def source_of(provider: TracerProvider | None, here: Runtime) -> TracerSource:
    """Return the source of a provider; without one, of the global one as it is now."""
    return here.sources.get(  # type: ignore[no-any-return]  # only sources are made there
        trace.get_tracer_provider() if provider is None else provider, TracerSource
    )


def span_kind(parent: trace.SpanContext) -> SpanKind:
    """Return SERVER under a remote parent or none, else INTERNAL."""
    return SpanKind.SERVER if not parent.is_valid or parent.is_remote else SpanKind.INTERNAL
