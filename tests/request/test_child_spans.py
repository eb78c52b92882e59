"""The spans of stages: made in one step where nobody could tell, else started and ended by the tracer."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import (
    ConcurrentMultiSpanProcessor,
    ReadableSpan,
    SpanLimits,
    SpanProcessor,
    TracerProvider,
    sampling,
)
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Span, set_span_in_context

from otel_lifecycle import _sdk_child_spans
from otel_lifecycle._configuration.fork_safe_providers import ForkSafeTracerProvider
from otel_lifecycle._sdk_child_spans import Child, ChildSpans
from otel_lifecycle._sdk_traces import PARTS
from otel_lifecycle.processor import LifecycleSpanProcessor
from tests.instruments.renamed import Renaming

TIMES = ((10, 20), (20, 35), (35, 35))


class Kept(SpanProcessor):
    """Keeps the spans that ended."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        """Keep it."""
        self.spans.append(span)


class SeesStarts(Kept):
    """Does something at the start of each span."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Add an attribute, as processors of baggage do."""
        span.set_attribute("baggage", "kept")


class Subclass(LifecycleSpanProcessor):
    """May do anything at the start of a span."""


class OwnSampler(sampling.Sampler):
    """Somebody's own sampler, which leaves out one stage."""

    def should_sample(self, parent_context: Any, trace_id: int, name: str, *others: Any, **named: Any) -> Any:
        """Decide by the name."""
        decision = sampling.Decision.DROP if name == "queue" else sampling.Decision.RECORD_AND_SAMPLE
        return sampling.SamplingResult(decision)

    def get_description(self) -> str:
        """Say its name."""
        return "own"


class Made:
    """A provider, the children that are made of one parent span, and how many of them the tracer started."""

    def __init__(self, provider: TracerProvider, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
        self.provider, self.kept = provider, kept
        self.started = 0
        self.tracer = provider.get_tracer("tests", "1.0", schema_url="https://example.com")
        real = self.tracer.real() if isinstance(self.tracer, _sdk_child_spans.Standing) else self.tracer
        start_span: Callable[..., Span] = type(real).start_span

        def counted(tracer: Any, *arguments: Any, **named: Any) -> Span:
            self.started += 1
            return start_span(tracer, *arguments, **named)

        monkeypatch.setattr(type(real), "start_span", counted)

    def children(self, make: Callable[[Any], Any] = ChildSpans) -> tuple[int, list[dict[str, Any]]]:
        """Make three spans of each of two stages; return how many the tracer started, and all that can be read."""
        parent = self.tracer.start_span("request")
        context = set_span_in_context(parent, Context())
        children = make(self.tracer)
        self.kept.spans.clear()
        self.started = 0
        for name in ("queue", "decode"):
            attributes = {"stage": name, "kind": "a long text"}
            children.add(parent, context, [(name, attributes, start, end) for start, end in TIMES])
        return self.started, [self._told(span, parent) for span in self.kept.spans]

    def _told(self, span: ReadableSpan, parent: Span) -> dict[str, Any]:
        told = {part: getattr(span, part) for part in PARTS if part not in ("context", "status")}
        own, of = span.context, parent.get_span_context()
        assert own.span_id not in (of.span_id, 0)
        told["identity"] = own.trace_id == of.trace_id, own.trace_flags, own.trace_state, own.is_remote
        told["attributes"] = dict(span.attributes or {})
        told["status"] = span.status.status_code
        told["parent"] = span.parent is not None and span.parent.span_id == of.span_id
        told["dropped"] = span.dropped_attributes, span.dropped_events, span.dropped_links
        return told


class Started:
    """Starts and ends every span: what the short way is compared with."""

    def __init__(self, tracer: Any) -> None:
        self.tracer = tracer

    def add(self, parent: Span, context: Context, children: Iterable[Child]) -> None:
        """Start it and end it."""
        for name, attributes, start, end in children:
            self.tracer.start_span(name, context, attributes=attributes, start_time=start).end(end)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Made]]:
    """Return what makes a provider with processors and a sampler."""
    providers: list[TracerProvider] = []

    def make(*processors: SpanProcessor, kept: Kept | None = None, **named: Any) -> Made:
        resource = Resource({"service.name": "tests"})
        provider = TracerProvider(resource=resource, shutdown_on_exit=False, **named)
        providers.append(provider)
        kept = Kept() if kept is None else kept
        for processor in (*processors, kept):
            provider.add_span_processor(processor)
        return Made(provider, kept, monkeypatch)

    yield make
    for provider in providers:
        provider.shutdown()


def exporting() -> list[SpanProcessor]:
    """The SDK's own processors, and ours in front of one."""
    exporter = InMemorySpanExporter()
    return [
        SimpleSpanProcessor(exporter),
        BatchSpanProcessor(exporter),
        LifecycleSpanProcessor(SimpleSpanProcessor(exporter)),
    ]


@pytest.mark.parametrize(
    "sampler",
    [
        sampling.ALWAYS_ON,
        sampling.DEFAULT_ON,
        sampling.TraceIdRatioBased(1.0),
        sampling.ParentBasedTraceIdRatio(1.0),
        sampling.ParentBased(sampling.ALWAYS_ON, local_parent_not_sampled=sampling.ALWAYS_ON),
    ],
)
def test_nobody_can_tell_a_span_made_in_one_step(made: Callable[..., Made], sampler: sampling.Sampler) -> None:
    """The tracer starts the first of each name; every part of the others is what it would have made."""
    one = made(*exporting(), sampler=sampler)
    started, told = one.children()
    assert (started, len(told)) == (2, 6)
    assert one.children(Started) == (6, told)


def test_processors_that_work_side_by_side(made: Callable[..., Made]) -> None:
    """The SDK's concurrent processor hands ends on as well."""
    one = made(active_span_processor=ConcurrentMultiSpanProcessor(2))
    started, told = one.children()
    one.provider.force_flush()
    assert (started, len(told)) == (2, 6)


@pytest.mark.parametrize(
    "named",
    [
        {"sampler": OwnSampler()},
        {"sampler": sampling.ParentBased(sampling.ALWAYS_ON, local_parent_sampled=sampling.ALWAYS_OFF)},
        {"sampler": sampling.StaticSampler(sampling.Decision.RECORD_ONLY)},
        {"sampler": sampling.ParentBased(OwnSampler(), local_parent_sampled=OwnSampler())},
        {"kept": SeesStarts()},
        {"span_limits": SpanLimits(max_span_attributes=1)},
    ],
    ids=["own_sampler", "children_left_out", "recorded_only", "own_sampler_of_children", "sees_starts", "limits"],
)
def test_where_somebody_could_tell_the_tracer_makes_all(made: Callable[..., Made], named: dict[str, Any]) -> None:
    """A sampler or a processor of somebody's own, a sampler that leaves children out, and limits that cut."""
    one = made(**named)
    assert one.children() == one.children(Started)


@pytest.mark.parametrize("make", [SeesStarts, lambda: LifecycleSpanProcessor(SeesStarts()), Subclass])
def test_a_processor_that_comes_later(made: Callable[..., Made], make: Callable[[], SpanProcessor]) -> None:
    """One that may do something at the start of a span sees the starts from then on, also behind ours."""
    one = made()
    children = ChildSpans(one.tracer)
    assert one.children(lambda _: children)[0] == 2
    one.provider.add_span_processor(make())
    assert one.children(lambda _: children)[0] == 6


def test_a_hidden_hook_before_the_end_is_called(made: Callable[..., Made]) -> None:
    """A processor that looks at spans that end, by a hook the SDK does not document, gets all of them."""
    hidden = [name for name in vars(SpanProcessor) if name.startswith("_") and not name.startswith("__")]
    if not hidden:
        pytest.skip("this SDK has no hidden hook")

    seen: list[Span] = []

    class SeesEndings(Kept):
        def _on_ending(self, span: Span) -> None:
            seen.append(span)

    assert made(kept=SeesEndings()).children()[0] == 6
    # The parent has not ended.
    assert len(seen) == 6


def test_texts_are_cut_as_the_tracer_cuts_them(made: Callable[..., Made]) -> None:
    """The parts of the first span are those that the limits left."""
    one = made(span_limits=SpanLimits(max_attribute_length=4))
    started, told = one.children()
    assert (started, told[-1]["attributes"]) == (2, {"stage": "deco", "kind": "a lo"})
    assert one.children(Started) == (6, told)


def test_the_tracer_counts_its_own_spans(made: Callable[..., Made], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the SDK has metrics of itself and they are switched on, none of its spans is left out."""
    monkeypatch.setenv("OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED", "true")
    one = made()
    if not hasattr(one.tracer, "_tracer_metrics"):
        pytest.skip("this SDK has no metrics of itself")
    assert one.children()[0] == 6


def test_a_tracer_that_outlives_a_fork(made: Callable[..., Made], monkeypatch: pytest.MonkeyPatch) -> None:
    """The tracer of ``configure()`` stands for a real one: its spans go to that, and to the next one after it."""
    first, second = made(), made()
    source = [first.provider]
    both = Made(ForkSafeTracerProvider(lambda: source[0]), first.kept, monkeypatch)
    children = ChildSpans(both.tracer)
    assert both.children(lambda _: children)[0] == 2
    source[0], both.kept = second.provider, second.kept
    assert both.children(lambda _: children)[0] == 2
    assert len(second.kept.spans) == 6


def private_names() -> list[str]:
    """The private names of the SDK that the module reads."""
    names = Renaming()
    names.visit(ast.parse(Path(_sdk_child_spans.__file__).read_text(encoding="utf-8")))
    return sorted(names.found & {"_span_processors", "_local_parent_sampled", "_tracer_metrics"})


def test_the_private_names_are_three() -> None:
    """The docstring of the module names them."""
    assert len(private_names()) == 3


@pytest.mark.parametrize("name", private_names())
def test_a_private_name_is_gone(made: Callable[..., Made], name: str) -> None:
    """The same spans come out; without the last of the names, as of an SDK that has no metrics of itself."""
    source = Path(_sdk_child_spans.__file__).read_text(encoding="utf-8")
    module: dict[str, Any] = {"__name__": _sdk_child_spans.__name__}
    exec(compile(ast.unparse(Renaming(name).visit(ast.parse(source))), "renamed", "exec"), module)
    one = made()
    started, told = one.children(module["ChildSpans"])
    assert started == (2 if name == "_tracer_metrics" else 6)
    assert one.children(Started) == (6, told)


def test_another_constructor_of_spans(made: Callable[..., Made], monkeypatch: pytest.MonkeyPatch) -> None:
    """If a span made of parts lacks one, the tracer makes all of that name."""
    one = made()
    ended = _sdk_child_spans._ended

    def forgetful(*parts: Any) -> ReadableSpan:
        span = ended(*parts)
        monkeypatch.setattr(span, "_attributes", {})
        return span

    monkeypatch.setattr(_sdk_child_spans, "_ended", forgetful)
    assert one.children()[0] == 6
