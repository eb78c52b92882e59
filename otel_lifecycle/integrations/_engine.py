"""What the instrumentors share: which versions they know, what they replace, and how a call becomes a request."""

from __future__ import annotations

import functools
import importlib.metadata
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from opentelemetry.context import attach, detach, get_current
from opentelemetry.instrumentation.dependencies import get_dependency_conflicts
from opentelemetry.instrumentation.instrumentor import (  # type: ignore[attr-defined]  # the module has no types
    BaseInstrumentor,
)
from opentelemetry.trace import TracerProvider

from otel_lifecycle._log import say
from otel_lifecycle._request.conditions import given
from otel_lifecycle._request.handle import NoRequest, Request, leave
from otel_lifecycle._request.opening import open_request
from otel_lifecycle._request.scope import context_of, in_context
from otel_lifecycle._request.streams import count_of
from otel_lifecycle.asgi._frames import ResponseTarget
from otel_lifecycle.openai import FrameFeed

_MISSING: Final = object()


class Unsupported(Exception):
    """The engine is not as expected; the message says what is missing."""


class Patches:
    """Attributes that were replaced, to be put back."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, object]] = []

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        """Replace ``owner.name`` by ``make(original)``; Unsupported if there is none."""
        own = vars(owner).get(name, _MISSING)
        original = getattr(owner, name, None)
        if not callable(original):
            raise Unsupported(f"{getattr(owner, '__name__', owner)} has no {name}")
        setattr(owner, name, functools.wraps(original)(make(original)))
        self._undo.append((owner, name, own))

    def undo(self) -> None:
        """Put everything back, the last replaced first."""
        while self._undo:
            owner, name, own = self._undo.pop()
            if own is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, own)


class EngineInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # the base class has no types
    """An instrumentor of one engine.

    ``instrument(tracer_provider=None)`` twice is once; ``uninstrument()`` puts back what was replaced.  An engine
    that is not installed is nothing to speak of; one of a version outside ``requirement``, or that is not as that
    version should be, is said once and left alone.
    """

    distribution: ClassVar[str]
    """The package as the index knows it."""
    requirement: ClassVar[str]
    """The versions this was tested with."""

    _patches: Patches | None = None
    _told: ClassVar[set[str]] = set()

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        # The base class keeps one instance for each class, and a class derived from one that has it would share it.
        cls._instance = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the one package this instruments, with its versions."""
        return (f"{self.distribution} {self.requirement}",)

    def _check_dependency_conflicts(self) -> None:
        # Asked in _instrument: opentelemetry-instrument skips this check, and the versions hold there too.
        return None

    def _instrument(self, **options: Any) -> None:
        conflict = get_dependency_conflicts(self.instrumentation_dependencies())
        if conflict is not None:
            if installed_version(self.distribution) is not None:
                self._tell(f"{self.distribution} {installed_version(self.distribution)} is not {self.requirement}")
            return
        patches = Patches()
        try:
            self._patch(patches, options.get("tracer_provider"))
        except (Unsupported, ImportError) as error:
            patches.undo()
            self._tell(f"{self.distribution} is not as expected: {error}")
            return
        self._patches = patches

    def _uninstrument(self, **options: Any) -> None:
        if self._patches is not None:
            self._patches.undo()
            self._patches = None

    @abstractmethod
    def _patch(self, patches: Patches, tracer_provider: TracerProvider | None) -> None:
        """Replace what has to be replaced; Unsupported if it is not there."""

    def _tell(self, message: str) -> None:
        if self.distribution not in self._told:
            self._told.add(self.distribution)
            say(f"instrument.{self.distribution}", f"{message}; it is not instrumented")


def installed_version(distribution: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


class EngineCall:
    """One call into an engine: its request, and whether ending it is ours."""

    def __init__(self, handle: Request, *, owned: bool) -> None:
        self.handle = handle
        self.owned = owned

    @property
    def live(self) -> bool:
        """Whether there is anything to do."""
        return not isinstance(self.handle, NoRequest)

    def run(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call with the request current; an exception ends it and goes on."""
        token = attach(context_of(self.handle._record, get_current()))
        try:
            return function(*arguments, **named)
        except BaseException as error:
            self.leave(error)
            raise
        finally:
            detach(token)

    def items(self, iterator: Iterator[Any], read: Callable[[Any], None]) -> Generator[Any, Any, Any]:
        """Yield what the engine yields, each item read first; its end is the end of the request.

        The request is current while an item is made, and never while the consumer has it.  It has begun with the call:
        a stream that is closed or dropped before its first pull ends it too.
        """
        items = self._items(iterator, read)
        # Nothing closes a generator that has not begun.
        next(items)
        return items

    def _items(self, iterator: Iterator[Any], read: Callable[[Any], None]) -> Generator[Any, Any, Any]:
        try:
            yield
            context = context_of(self.handle._record, get_current())
            while True:
                token = attach(context)
                try:
                    item = next(iterator)
                finally:
                    detach(token)
                read(item)
                yield item
        except StopIteration as stop:
            self.answered()
            return stop.value
        except BaseException as error:
            self.leave(error)
            raise
        finally:
            close = getattr(iterator, "close", None)
            if close is not None:
                close()

    def answered(self) -> None:
        """The call gave its whole answer: whatever nobody marked by now is simply there."""
        record = self.handle._record
        if record.awaits_output:
            record.whole_answer(record.usage.get("output_tokens"))
        self.leave(None)

    def leave(self, error: BaseException | None) -> None:
        """End the request by what left the call, if ending it is ours."""
        if self.owned:
            leave(self.handle._record, error)

    def reader(self, *, counts: bool) -> Callable[[Any], None]:
        """Return what reads the frames of an OpenAI-compatible engine; with ``counts`` they mark its tokens."""
        feed = FrameFeed(_EngineMarks(self.handle, owned=self.owned, counts=counts))
        record = self.handle._record

        def read(frame: Any) -> None:
            count_of(record, feed, frame)

        return read


class EngineMethod(ABC):
    """How the calls of one method of an engine become requests."""

    def __init__(self, conditions: Mapping[str, object], shape: str, tracer_provider: TracerProvider | None) -> None:
        self._conditions = conditions
        self._shape = shape
        self._tracer_provider = tracer_provider

    @abstractmethod
    def around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method with a request around it."""

    def begin(self, asked: Mapping[str, object]) -> EngineCall:
        """Open the request of one call, with what the call says of it; join the current one."""
        return begin({**self._conditions, **asked}, shape=self._shape, tracer_provider=self._tracer_provider)


class _EngineMarks(ResponseTarget):
    """Marks of an engine whose models are files."""

    def response(
        self, *, id: str | None = None, model: str | None = None, finish_reasons: Sequence[str] | None = None
    ) -> None:
        """Note what the answer says of itself."""
        self._handle.response(id=id, model=model_name(model), finish_reasons=finish_reasons)
        name_model(self._handle, model)


def model_name(model: object) -> str | None:
    """Return what a model is called: of a path, the file's name alone, without the folder or ``.gguf``."""
    name = model.replace("\\", "/").rsplit("/", 1)[-1] if isinstance(model, str) else ""
    return name.removesuffix(".gguf") or None


def name_model(handle: Request, model: object) -> None:
    """Say which model a request is for, where nobody has."""
    name = model_name(model)
    if name is not None and handle._record.labels.model is None and handle._record.status is None:
        handle.set(model=name)


def begin(
    values: Mapping[str, object], *, shape: str = "default", tracer_provider: TracerProvider | None
) -> EngineCall:
    """Open the request of a call into an engine; where one is current, join it and leave its end to its owner."""
    outer = in_context()
    if outer is not None:
        return EngineCall(outer, owned=False)
    conditions = given(values)
    handle = open_request(conditions, shape=shape, tracer_provider=tracer_provider, unmarked=True)
    return EngineCall(handle, owned=True)


def whole(value: object) -> int | None:
    """Return a count a client gave, if it is one; a client may send anything."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def text(value: object) -> str | None:
    """Return a name a client gave, if it is one."""
    return value if isinstance(value, str) and value else None
