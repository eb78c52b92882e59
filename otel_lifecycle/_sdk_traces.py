"""What this package needs of OpenTelemetry's traces beyond the documented interface, and what happens without it.

Checked with opentelemetry-sdk 1.31.1 and 1.45.1.

How it works.  Three things are needed; the first two get by without any private name.

A span that has ended cannot be changed, so a foreign one is exported as a :class:`RebuiltSpan`.  The SDK makes its
spans with the constructor of ``ReadableSpan`` and asks others not to.  What it dropped of a span it counts in private
containers; the class tells those counts through the public properties that exporters read.  A self-test builds one
span, once a process.  If that fails, there is one warning, and foreign spans go on as they came, without attribution;
their metrics do not need it.

The SDK calls hooks of span processors that it does not document, such as ``_on_ending`` since 1.40.
:class:`HandingOn` hands on each hook that the installed SDK has, under whatever name, so none is named here.

``doctor`` shows which exporters a provider has.  No public call tells, so :func:`held_processors` and
:func:`held_exporters` read private names.  If one is gone, doctor says that it cannot see them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from otel_lifecycle._log import logger

DOCUMENTED_HOOKS: Final = frozenset({"on_start", "on_end", "shutdown", "force_flush"})

PARTS: Final = (
    "name",
    "context",
    "parent",
    "resource",
    "attributes",
    "events",
    "links",
    "kind",
    "status",
    "start_time",
    "end_time",
    "instrumentation_scope",
)
"""The parts of a span: arguments of the SDK's constructor, and public properties of every span."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """How many attributes, events and links of a span the SDK dropped by its limits."""

    attributes: int = 0
    events: int = 0
    links: int = 0


class RebuiltSpan(ReadableSpan):
    """An ended span made of given parts, see :data:`PARTS`, and the counts of what is missing of it."""

    def __init__(self, dropped: Dropped, **parts: Any) -> None:
        super().__init__(**parts)
        self.dropped_parts = dropped

    @property
    def dropped_attributes(self) -> int:
        """Return how many attributes the SDK dropped."""
        return self.dropped_parts.attributes

    @property
    def dropped_events(self) -> int:
        """Return how many events the SDK dropped."""
        return self.dropped_parts.events

    @property
    def dropped_links(self) -> int:
        """Return how many links the SDK dropped."""
        return self.dropped_parts.links


def rebuilt(span: ReadableSpan, **changed: Any) -> ReadableSpan:
    """Return the span with some parts changed; the span as it came if this SDK's spans cannot be rebuilt."""
    if not spans_can_be_rebuilt():
        return span
    dropped = Dropped(attributes=span.dropped_attributes, events=span.dropped_events, links=span.dropped_links)
    return RebuiltSpan(dropped, **{name: getattr(span, name) for name in PARTS} | changed)


@lru_cache(maxsize=1)
def spans_can_be_rebuilt() -> bool:
    """Return whether a span made of parts has those parts; if not, there is one warning."""
    parts = _sample()
    try:
        made = RebuiltSpan(Dropped(attributes=1, events=2, links=3), **parts)
        works = all(same_part(getattr(made, name), parts[name]) for name in PARTS)
    except Exception:  # noqa: BLE001  # whatever it is, this SDK is not one that is known
        logger.debug("the SDK's spans have other insides", exc_info=True)
        works = False
    if not works:
        logger.warning(
            "the installed OpenTelemetry SDK has other insides than the known ones: foreign lifecycle spans keep their"
            " metrics and get no attribution"
        )
    return works


def same_part(told: Any, given: Any) -> bool:
    """Return whether a part of a span is what was given for it."""
    # A span gives copies of its containers, of types of its own.
    if isinstance(given, Mapping):
        return dict(told) == dict(given)
    return list(told) == list(given) if isinstance(given, list) else bool(told == given)


def _sample() -> dict[str, Any]:
    context = SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    return {
        "name": "sample",
        "context": context,
        "parent": SpanContext(1, 3, is_remote=True),
        "resource": Resource({"service.name": "sample"}),
        "attributes": {"key": "value"},
        "events": [Event("arrive", {"count": 1}, 4)],
        "links": [Link(context, {"key": 1})],
        "kind": SpanKind.SERVER,
        "status": Status(StatusCode.ERROR),
        "start_time": 4,
        "end_time": 5,
        "instrumentation_scope": InstrumentationScope("sample"),
    }


def hidden_hooks() -> list[str]:
    """Return the hooks of span processors that the SDK calls and does not document."""
    return [
        name
        for name, hook in vars(SpanProcessor).items()
        if callable(hook) and not name.startswith("__") and name not in DOCUMENTED_HOOKS
    ]


class HandingOn(SpanProcessor):
    """A processor in front of another one: undocumented hooks of the SDK are handed on by :meth:`hand_on`."""

    def __init_subclass__(cls, **named: Any) -> None:
        """Give the class a method for each hook that it has none for."""
        super().__init_subclass__(**named)
        for name in hidden_hooks():
            if getattr(cls, name) is getattr(SpanProcessor, name):
                setattr(cls, name, _handing_on(name))

    @property
    def behind(self) -> SpanProcessor | None:
        """The processor behind this one."""
        raise NotImplementedError

    @property
    def marks_only_claims(self) -> bool:
        """Whether it does nothing else at the start of a span than to look for a claim, as far as its class tells."""
        raise NotImplementedError

    def hand_on(self, hook: str, *arguments: Any, **named: Any) -> Any:
        """Call the hook of this name of the processor behind this one, if it has one."""
        raise NotImplementedError


def _handing_on(name: str) -> Callable[..., Any]:
    def handed_on(self: HandingOn, *arguments: Any, **named: Any) -> Any:
        return self.hand_on(name, *arguments, **named)

    return handed_on


# "_batch_processor" holds the exporter in newer SDKs, "span_exporter" in older ones; "_delegate" is a wrapper's.
_HOLDERS: Final = ("span_exporter", "_exporter", "_batch_processor", "_delegate", "_next")


def held_processors(provider: object) -> list[object] | None:
    """Return the span processors of a tracer provider; None where that cannot be seen."""
    held = getattr(getattr(provider, "_active_span_processor", None), "_span_processors", None)
    return None if held is None else list(held)


def held_exporters(holder: object) -> list[object]:
    """Return what a span processor, a metric reader or a wrapper of an exporter holds."""
    held = [getattr(holder, name, None) for name in _HOLDERS]
    return [one for one in held if one is not None and not callable(one)]


def endpoint_of(exporter: object) -> str | None:
    """Return where an OTLP exporter sends to; None where it does not say."""
    endpoint = getattr(exporter, "_endpoint", None)
    return endpoint if isinstance(endpoint, str) else None
