"""What the instrumentors share: which versions they know, what they replace, and how a call becomes a request.

An instrumentor replaces methods of the engine's classes and puts them back, as ``opentelemetry-instrument`` expects it.
A method that is missing leaves the engine as it was: no telemetry is better than half of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

from opentelemetry.instrumentation.dependencies import get_dependency_conflicts
from opentelemetry.instrumentation.instrumentor import (  # type: ignore[attr-defined]  # the module has no types
    BaseInstrumentor,
)
from opentelemetry.trace import TracerProvider

from otel_lifecycle import driver
from otel_lifecycle._guard import guarded
from otel_lifecycle._log import say
from otel_lifecycle.driver import Driver, RequestMarks
from otel_lifecycle.integrations._hooks import EngineMismatch, Hooks, installed_version
from otel_lifecycle.openai import FrameFeed


class EngineInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # the base class has no types
    """An instrumentor of one engine.

    ``instrument(tracer_provider=None)`` twice is once; ``uninstrument()`` puts back what was replaced.  An engine
    that is not installed is skipped silently.  One with a version outside ``requirement``, or that is not as that
    version should be, is logged once and left alone.
    """

    distribution: ClassVar[str]
    """The package as the index knows it."""
    requirement: ClassVar[str]
    """The versions this was tested with."""

    _hooks: Hooks | None = None
    _told: ClassVar[set[str]] = set()

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        # The base class keeps one instance for each class, and a class derived from one that has it would share it.
        cls._instance = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the one package this instruments, with its versions."""
        return (f"{self.distribution} {self.requirement}",)

    # This name and _instance below belong to BaseInstrumentor, checked with 0.66b1.  Where one is gone, the versions
    # are still checked in _instrument, and derived instrumentors would share one instance.
    def _check_dependency_conflicts(self) -> None:
        # Asked in _instrument: opentelemetry-instrument skips this check, and the versions hold there too.
        return None

    def _instrument(self, **options: Any) -> None:
        conflict = get_dependency_conflicts(self.instrumentation_dependencies())
        if conflict is not None:
            if installed_version(self.distribution) is not None:
                self._tell(f"{self.distribution} {installed_version(self.distribution)} is not {self.requirement}")
            return
        hooks = Hooks()
        try:
            self._patch(hooks, options.get("tracer_provider"))
        # Nothing stays half patched: a request that is opened by one patch may be ended by another one.
        # AttributeError: a class of the engine has moved or is gone.
        except (EngineMismatch, ImportError, AttributeError) as error:
            hooks.undo()
            self._tell(f"{self.distribution} is not as expected: {error}")
            return
        self._hooks = hooks

    def _uninstrument(self, **options: Any) -> None:
        if self._hooks is not None:
            self._hooks.undo()
            self._hooks = None

    @abstractmethod
    def _patch(self, hooks: Hooks, tracer_provider: TracerProvider | None) -> None:
        """Replace what has to be replaced; EngineMismatch if it is not there."""

    def _tell(self, message: str) -> None:
        # Once for each process: say() alone would repeat it after a minute, for each attempt.
        if self.distribution not in self._told:
            self._told.add(self.distribution)
            say(f"instrument.{self.distribution}", f"{message}; it is not instrumented")


class EngineMethod(ABC):
    """How the calls of one method of an engine become requests."""

    def __init__(self, conditions: Mapping[str, object], shape: str, tracer_provider: TracerProvider | None) -> None:
        self._conditions = conditions
        self._shape = shape
        self._tracer_provider = tracer_provider

    @abstractmethod
    def around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method with a request around it."""

    def begin(self, asked: Mapping[str, object]) -> Driver:
        """Open the request of one call, with what the call says about it, or join the current one."""
        return driver.begin({**self._conditions, **asked}, shape=self._shape, tracer_provider=self._tracer_provider)


class _EngineMarks(RequestMarks):
    """Marks of an engine whose models are files."""

    __slots__ = ()

    def response(self, *, id: str | None = None, model: str | None = None, finish_reasons: Any = None) -> None:
        """Note what the answer says about itself."""
        super().response(id=id, model=model_name(model), finish_reasons=finish_reasons)
        self._driver.suggest(model=model_name(model))


def reader(drive: Driver, *, counts: bool) -> Callable[[Any], None]:
    """Return what reads the frames of an OpenAI-compatible engine; with ``counts`` they mark its tokens."""
    feed = FrameFeed(_EngineMarks(drive, counts=counts))

    def read(frame: Any) -> None:
        guarded("a frame", feed, frame)

    return read


def model_name(model: object) -> str | None:
    """Return the name of a model; for a path it is the file's name without the folder and ``.gguf``."""
    name = model.replace("\\", "/").rsplit("/", 1)[-1] if isinstance(model, str) else ""
    return name.removesuffix(".gguf") or None


def whole(value: object) -> int | None:
    """Return a count a client gave, if it is one; a client may send anything."""
    # OTLP integers have 64 bits: a larger one would lose its whole batch.
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def text(value: object) -> str | None:
    """Return a name a client gave, if it is one."""
    return value if isinstance(value, str) and value else None
