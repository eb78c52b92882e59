"""``llama-cpp-python``: the class ``Llama``, and the server that comes with it.

A call of ``create_completion``, ``create_chat_completion`` or ``create_embedding`` is a request, one inside another the
same one.  Tokens are marked where the model yields them, so a whole answer has a first token too; the input is ready
when that begins.  In the server a request arrives over HTTP and is admitted when it holds the model's lock.  A stream
that the server breaks off, because another request came or the client left, is cancelled, whatever it sends last.  With
a draft model one step gives several tokens and does not tell how many, so gaps and counts of a stream are absent.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from typing import Any, ClassVar, Final

from opentelemetry.trace import TracerProvider

from otel_lifecycle import driver
from otel_lifecycle._log import say
from otel_lifecycle._request.opening import current
from otel_lifecycle._request.startup import startup
from otel_lifecycle.asgi import LifecycleMiddleware, Route
from otel_lifecycle.driver import Driver
from otel_lifecycle.integrations._engine import EngineInstrumentor, EngineMethod, model_name, reader, whole
from otel_lifecycle.integrations._engine_names import EngineNames
from otel_lifecycle.integrations._hooks import EngineMismatch, Hooks, installed_version

METHODS: Final[Mapping[str, tuple[str, str]]] = {
    "create_chat_completion": ("chat", "default"),
    "create_completion": ("text_completion", "default"),
    "create_embedding": ("embeddings", "pooling"),
}
"""Each method that is a request -> its operation and shape."""

ROUTES: Final = (
    Route("POST /v1/chat/completions", operation="chat"),
    Route("POST /v1/completions", operation="text_completion"),
    Route("POST /v1/engines/copilot-codex/completions", operation="text_completion"),
    Route("POST /v1/embeddings", operation="embeddings", shape="pooling"),
)
"""The server's routes that are requests."""

SERVER_NEEDS: Final = ("fastapi", "sse_starlette", "starlette_context")
"""What is installed where the server can be."""

BACKEND: Final = "llama.cpp"


class LlamaCppInstrumentor(EngineInstrumentor):
    """Makes each call of ``llama_cpp.Llama``, and each request of its server, an inference request."""

    distribution: ClassVar[str] = "llama-cpp-python"
    requirement: ClassVar[str] = ">= 0.3.36, < 0.4"

    def _patch(self, hooks: Hooks, tracer_provider: TracerProvider | None) -> None:
        # Imported here: this module is loaded as an entry point, whether the engine is installed or not.
        import llama_cpp

        llama, is_end = llama_cpp.Llama, getattr(llama_cpp, "llama_vocab_is_eog", None)
        # Asked before anything is patched: without it, an end token would count as output.
        if is_end is None:
            raise EngineMismatch("llama_cpp has no llama_vocab_is_eog")
        told = {"backend": BACKEND, "backend_version": installed_version(self.distribution)}
        names = EngineNames(BACKEND)
        hooks.wrap(llama, "__init__", _Loading(told, tracer_provider).around)
        for name, (operation, shape) in METHODS.items():
            method = _Method({**told, "operation": operation}, shape, tracer_provider, names)
            hooks.wrap(llama, name, method.around)
        hooks.wrap(llama, "generate", _Generation(is_end).around)
        # find_spec() and not an import: the server's packages are heavy, and most programs use the class alone.
        if all(importlib.util.find_spec(name) is not None for name in SERVER_NEEDS):
            _patch_server(hooks, told, tracer_provider)


class _Loading:
    """Loading a model is a cold-start phase."""

    def __init__(self, told: Mapping[str, Any], tracer_provider: TracerProvider | None) -> None:
        self._told = told
        self._tracer_provider = tracer_provider

    def around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``Llama.__init__`` with its time recorded."""

        def init(llama: Any, model_path: Any, *arguments: Any, **named: Any) -> None:
            name = model_name(str(model_path))
            with startup("load_model", model=name, tracer_provider=self._tracer_provider, **self._told):
                original(llama, model_path, *arguments, **named)

        return init


class _Method(EngineMethod):
    """How the calls of one method become requests."""

    def __init__(
        self, told: Mapping[str, object], shape: str, tracer_provider: TracerProvider | None, names: EngineNames
    ) -> None:
        super().__init__(told, shape, tracer_provider)
        self._names = names

    def around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method with a request around it."""

        def method(llama: Any, *arguments: Any, **named: Any) -> Any:
            call = self.begin(_asked(named))
            if not call:
                return original(llama, *arguments, **named)
            # The model of a call is what its client calls it; the engine is the loaded file, whatever it is called.
            engine = self._names.of(llama, model_name(llama.model_path))
            call.suggest(model=model_name(named.get("model") or llama.model_path), engine=engine)
            result = call.run(original, llama, *arguments, **named)
            # Tokens are marked in generate(), where the model yields them; the frames add only what else they tell.
            read = reader(call, counts=False)
            if hasattr(result, "__next__"):
                return call.stream(result, read=read, eager=True)
            read(result)
            call.answered()
            return result

        return method


class _Generation:
    """Marks what the model itself tells: its input is ready, and each token."""

    def __init__(self, is_end: Callable[[Any, int], bool]) -> None:
        self._is_end = is_end

    def around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``Llama.generate`` with its tokens marked on the current request."""

        def generate(llama: Any, tokens: Sequence[int], *arguments: Any, **named: Any) -> Any:
            request = current()
            source = original(llama, tokens, *arguments, **named)
            if not request:
                return source
            return self._marked(driver.adopt(request, owned=False), llama, len(tokens), source)

        return generate

    def _marked(
        self, drive: Driver, llama: Any, inputs: int, source: Generator[int, Any, None]
    ) -> Generator[int, Any, None]:
        drive.suggest(input_tokens=inputs)
        drive.mark("input_ready")
        # A draft model's tokens are accepted several at a time.
        count = 1 if llama.draft_model is None else None
        try:
            token = next(source)
            while True:
                if not self._ends(llama, token):
                    drive.item(count)
                elif drive.awaits_output:
                    # An end token first: the answer is empty, and that is known.
                    drive.answer(0)
                # generate() is a two-way generator: a caller may send tokens back into it.
                sent = yield token
                token = source.send(sent)
        except StopIteration:
            return
        finally:
            source.close()

    def _ends(self, llama: Any, token: int) -> bool:
        """Whether a token is the end of the answer and no part of it; no token is, where that cannot be asked."""
        try:
            # _model is private, checked with 0.3.36.  Where it is gone, the end counts as one token of output.
            return self._is_end(llama._model.vocab, token)
        except AttributeError as error:
            say("instrument.llama_cpp.vocab", f"llama-cpp-python does not tell its end tokens: {error}")
            return False


def _asked(named: Mapping[str, Any]) -> dict[str, object]:
    """Return what the arguments of a call say about the request."""
    stream = named.get("stream")
    return {"max_tokens": whole(named.get("max_tokens")), "stream": stream if isinstance(stream, bool) else None}


def _patch_server(hooks: Hooks, told: Mapping[str, Any], tracer_provider: TracerProvider | None) -> None:
    from llama_cpp.server import app

    def followed(create_app: Callable[..., Any]) -> Callable[..., Any]:
        def create(*arguments: Any, **named: Any) -> Any:
            made = create_app(*arguments, **named)
            made.add_middleware(LifecycleMiddleware, routes=ROUTES, tracer_provider=tracer_provider, **told)
            return made

        return create

    hooks.wrap(app, "create_app", followed)
    hooks.wrap(app, "get_llama_proxy", _admitted)
    hooks.wrap(app, "get_event_publisher", _published)


def _admitted(original: Callable[[], AsyncIterator[Any]]) -> Callable[[], AsyncIterator[Any]]:
    """A request is admitted when it gets the model's lock."""

    async def get_llama_proxy() -> AsyncIterator[Any]:
        # FastAPI drives a dependency that is an async generator function, so the wrapper has to be one, too.
        async with contextlib.asynccontextmanager(original)() as proxy:
            driver.adopt(current(), owned=False).mark("admit")
            yield proxy

    return get_llama_proxy


def _published(original: Callable[..., Any]) -> Callable[..., Any]:
    """End the request where its stream breaks off: the server closes the response normally afterwards."""

    async def get_event_publisher(*arguments: Any, **named: Any) -> Any:
        drive = driver.adopt(current(), owned=True)
        try:
            return await original(*arguments, **named)
        except BaseException as error:
            drive.end(drive.terminal_for(error))
            raise

    return get_event_publisher
