"""Cold starts: loading, compiling and warming up, recorded apart from requests.

How it works.  A phase is one span and, if it ends well, one sample.  It takes a processor by the same claim as a
request does, and belongs to no request, so its sample has neither operation nor provider.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter_ns
from types import TracebackType
from typing import Any, TypeVar

from opentelemetry.context import Context, get_current
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
    set_span_in_context,
    use_span,
)

from otel_lifecycle import semconv
from otel_lifecycle._core.endings import error_type
from otel_lifecycle._core.text import clean, is_identifier, shown
from otel_lifecycle._request import conditions
from otel_lifecycle._request.blocks import Block
from otel_lifecycle._request.tracers import source_of
from otel_lifecycle._runtime import Claim, runtime, with_claim
from otel_lifecycle.errors import ConfigurationError, InvalidValue

# A span keeps 128 attributes, and a launch command may have hundreds of flags.
MAX_PARAMETERS = 64


Function = TypeVar("Function", bound=Callable[..., Any])


def startup(
    phase: str,
    *,
    hardware: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    tracer_provider: TracerProvider | None = None,
    **given: Any,
) -> Startup:
    """Record a cold-start phase, such as ``load_model``, ``compile`` or ``warm_up``: a block, or a decorator.

    It becomes a span ``startup {phase}`` and, if the block is left normally, a sample of ``inference.startup.duration``
    (seconds).  ``hardware``: what it runs on.  ``parameters``: how the server was launched.  Further: ``model``,
    ``revision``, ``dtype``, ``backend``, ``backend_version``.  An exception leaves its type on the span and goes on.

    Raises ConfigurationError for a phase that is not an identifier, a condition that does not exist or cannot be.
    """
    return Startup(phase, _attributes(phase, hardware, parameters, given), tracer_provider)


class Startup(Block):
    """A cold-start phase: ``with``, ``async with``, or a decorator of a function or a coroutine."""

    def __init__(self, phase: str, attributes: dict[str, Any], tracer_provider: TracerProvider | None) -> None:
        self._phase = phase
        self._attributes = attributes
        self._provider = tracer_provider
        # A stack, because one object may be entered again inside its own block.
        self._blocks: list[Any] = []

    def __enter__(self) -> None:
        block = self._block()
        block.__enter__()
        self._blocks.append(block)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._blocks.pop().__exit__(kind, error, traceback)

    def __call__(self, function: Function) -> Function:
        """Record every call of the function.  ConfigurationError for a generator, which is not done when it returns."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigurationError(
                f"{function.__qualname__} is a generator; a startup phase is a function or a block"
            )
        if inspect.iscoroutinefunction(function):

            async def coroutine(*args: Any, **kwargs: Any) -> Any:
                with self._block():
                    return await function(*args, **kwargs)

            return functools.wraps(function)(coroutine)  # type: ignore[return-value]  # same signature

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self._block():
                return function(*args, **kwargs)

        return functools.wraps(function)(wrapper)  # type: ignore[return-value]  # same signature

    @contextmanager
    def _block(self) -> Iterator[None]:
        here = runtime()
        source = source_of(self._provider, here)
        claim: Claim = []
        context = with_claim(get_current(), claim)
        name = f"startup {self._phase}"
        span = source.tracer.start_span(name, context, kind=SpanKind.INTERNAL, attributes=self._attributes)
        # An unsampled span is seen by no processor; its sample still counts.
        assessor = claim[0] if claim else source.assessor(here)
        began = perf_counter_ns()
        try:
            # The type of an exception goes onto the span, never its message, which may hold a path or a token.
            with use_span(span, record_exception=False, set_status_on_exception=False):
                yield
        except BaseException as error:
            span.set_attribute(semconv.ERROR_TYPE, error_type(error))
            span.set_status(Status(StatusCode.ERROR))
            raise
        else:
            if assessor is not None:
                exemplar = set_span_in_context(NonRecordingSpan(span.get_span_context()), Context())
                model = self._attributes.get(semconv.GEN_AI_REQUEST_MODEL)
                assessor.record_startup(self._phase, (perf_counter_ns() - began) / 1e9, model, exemplar)
        finally:
            span.end()


def _attributes(
    phase: object, hardware: str | None, parameters: Mapping[str, Any] | None, given: Mapping[str, Any]
) -> dict[str, Any]:
    if not isinstance(phase, str) or not is_identifier(phase):
        raise ConfigurationError(f"the phase is {phase!r:.80}; it must be letters, digits, _ and ., up to 64")
    attributes: dict[str, Any] = {semconv.STARTUP_PHASE: phase}
    try:
        if hardware is not None:
            attributes[semconv.HARDWARE] = conditions.read_text("hardware", hardware)
        for name, value in conditions.given(given).items():
            if name not in conditions.STARTUP_CONDITIONS:
                known = ", ".join(conditions.STARTUP_CONDITIONS)
                raise InvalidValue(f"no condition {name!r:.80} of a startup; there are {known}")
            row, read = conditions.read_condition(name, value)
            if row.attribute is not None:
                attributes[row.attribute] = read
    except InvalidValue as error:
        raise ConfigurationError(str(error)) from error
    if parameters is not None and not isinstance(parameters, Mapping):
        raise ConfigurationError(f"parameters is {shown(parameters)}; it must be a mapping")
    for name, value in list((parameters or {}).items())[:MAX_PARAMETERS]:
        if value is not None:
            attributes[semconv.STARTUP_PARAMETER_PREFIX + clean(str(name))] = _parameter(value)
    return attributes


def _parameter(value: Any) -> Any:
    """A number or a flag as it is, anything else as text; so is an integer that OTLP has no room for."""
    fits = isinstance(value, float) or (isinstance(value, int) and -(2**63) <= value < 2**63)
    return value if fits else clean(str(value))
