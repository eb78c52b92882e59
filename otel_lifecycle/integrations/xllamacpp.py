"""``xllamacpp``: llama.cpp's server inside the process, called through ``Server.handle_*``.

Each call is a request.  A stream gives its tokens as they come; a whole answer gives their number.  The engine's
queue and prompt processing happen inside one call that does not report their ends, so those stages are absent.
Requests to the server's own HTTP port never pass through Python and are not seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from opentelemetry.trace import TracerProvider

from otel_lifecycle._core.endings import cancellation
from otel_lifecycle.driver import Driver
from otel_lifecycle.integrations._engine import EngineInstrumentor, EngineMethod, reader, text, whole
from otel_lifecycle.integrations._hooks import Hooks, installed_version

BACKEND: Final = "llama.cpp"

METHODS: Final[Mapping[str, tuple[str, str]]] = {
    "handle_chat_completions": ("chat", "default"),
    "handle_completions": ("text_completion", "default"),
    "handle_embeddings": ("embeddings", "pooling"),
    "handle_rerank": ("rerank", "pooling"),
}
"""Each method that is a request -> its operation and shape."""


class XllamacppInstrumentor(EngineInstrumentor):
    """Makes each call of ``xllamacpp.Server`` an inference request."""

    distribution: ClassVar[str] = "xllamacpp"
    requirement: ClassVar[str] = ">= 0.2.14, < 2027"

    def _patch(self, hooks: Hooks, tracer_provider: TracerProvider | None) -> None:
        # Imported here: this module is loaded as an entry point, whether the engine is installed or not.
        import xllamacpp

        told = {"backend": BACKEND, "backend_version": installed_version(self.distribution)}
        for name, (operation, shape) in METHODS.items():
            handler = _Handler({**told, "operation": operation}, shape, tracer_provider)
            hooks.wrap(xllamacpp.Server, name, handler.around)


class _Handler(EngineMethod):
    """How the calls of one method become requests."""

    def around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method with a request around it."""

        def handle(server: Any, prompt: Any, *callback: Any, **named: Any) -> Any:
            call = self.begin({**_asked(prompt), "engine": _engine(server)})
            if not call:
                return original(server, prompt, *callback, **named)
            run = _Run(call)
            callback = tuple(map(run.tap, callback))
            named = {name: run.tap(value) for name, value in named.items()}
            result = call.run(original, server, prompt, *callback, **named)
            run.finish(result)
            return result

        return handle


def _engine(server: Any) -> str | None:
    """Return what the requests of a server compete for: its address, since a server does not tell its model."""
    address = getattr(server, "listening_address", None)
    return f"{BACKEND} {address.rpartition('/')[2]}" if isinstance(address, str) else None


class _Run:
    """One call: what the engine hands out goes to the request first."""

    def __init__(self, call: Driver) -> None:
        self._call = call
        self._read = reader(call, counts=True)
        self._stopped = False

    def tap(self, callback: Any) -> Any:
        """Return the callback with each frame read before it is called."""
        if not callable(callback):
            return callback

        def each(frame: Any) -> Any:
            # Read before the callback gets it, because a callback may take long or change the frame.
            self._read(frame)
            try:
                stop = callback(frame)
            except BaseException as error:
                # The engine stops, and keeps the exception to itself.
                self._call.leave(error)
                raise
            self._stopped = self._stopped or bool(stop)
            return stop

        return each

    def finish(self, result: Any) -> None:
        """End the request by what the call gave."""
        if isinstance(result, Mapping):
            reader(self._call, counts=False)(_of_all_choices(result))
        if self._stopped:
            # A caller stops the engine by a callback that returns True, and nothing in the result shows it.
            self._call.end(cancellation())
        self._call.answered()


def _of_all_choices(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Leave the figures out of an answer of several choices: llama.cpp counts the last one alone."""
    choices = answer.get("choices")
    several = isinstance(choices, list) and len(choices) > 1
    return {name: value for name, value in answer.items() if not (several and name in {"usage", "timings"})}


def _asked(prompt: Any) -> dict[str, object]:
    """Return what the body of a request says about it; nothing if it cannot be read."""
    try:
        body = json.loads(prompt) if isinstance(prompt, (str, bytes)) else prompt
    except ValueError:
        return {}
    if not isinstance(body, Mapping):
        return {}
    limit = next((body[name] for name in ("max_completion_tokens", "max_tokens", "n_predict") if name in body), None)
    stream = body.get("stream")
    return {
        "model": text(body.get("model")),
        "max_tokens": whole(limit),
        "stream": stream if isinstance(stream, bool) else None,
    }
