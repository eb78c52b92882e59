"""OpenAI's chat completions and completions, as OpenAI, vLLM, SGLang, llama.cpp, TGI and gateways send them."""

from __future__ import annotations

from otel_lifecycle._core.tokens import total
from otel_lifecycle._frames.fields import as_count, as_list, as_text, get, holds_text, index_of
from otel_lifecycle._frames.frame import Frame
from otel_lifecycle._frames.refusals import ENGINE_ERROR, reason_of

# reasoning_content: DeepSeek, vLLM, SGLang, llama.cpp; reasoning: newer vLLM and OpenRouter, which adds
# reasoning_details.  An engine that sends two of them in one delta still sends one piece.
_DELTA_TEXT = ("content", "reasoning_content", "reasoning", "reasoning_details", "refusal")
"""Fields of a delta that the model wrote; engines and gateways use different ones for reasoning."""

_MARKS = ("choices", "usage", "timings", "error", "object")
"""A body with one of these is of this dialect."""


def is_chat(body: object) -> bool:
    """Return whether a body is of this dialect."""
    return any(get(body, name) is not None for name in _MARKS)


def read_chat(body: object) -> Frame:
    """Read a chunk of a stream, a whole completion, or an error."""
    choices = as_list(get(body, "choices"))
    listed = [_listed_tokens(choice) for choice in choices]
    counts = [
        (index_of(choice), known or _unlisted_tokens(choice)) for choice, known in zip(choices, listed, strict=True)
    ]
    tokens = tuple((choice, n) for choice, n in counts if n != 0)
    read, written, cached = _figures(body)
    return Frame(
        tokens=tokens,
        sized=bool(tokens) and all(known or n == 0 for known, (_, n) in zip(listed, counts, strict=True)),
        finish_reasons=tuple(
            (index_of(choice), reason) for choice in choices if (reason := as_text(get(choice, "finish_reason")))
        ),
        response_id=as_text(get(body, "id")),
        model=as_text(get(body, "model")),
        input_tokens=read,
        output_tokens=None if written == 0 and tokens else written,
        cached_tokens=cached,
        choices=len(choices),
        error=_error_reason(body, choices),
        # vLLM and SGLang close a request that they were told to drop with this reason.
        cancelled=any(get(choice, "finish_reason") == "abort" for choice in choices),
        whole=any(get(choice, "message") is not None for choice in choices),
    )


def _figures(body: object) -> tuple[int | None, int | None, int | None]:
    """Return the tokens of input, output and cache that the engine counted."""
    usage = get(body, "usage")
    if usage:
        cached = as_count(get(get(usage, "prompt_tokens_details"), "cached_tokens"))
        return as_count(get(usage, "prompt_tokens")), as_count(get(usage, "completion_tokens")), cached
    # llama.cpp closes a stream with its timings, asked for usage or not; prompt_n is the input that was not cached.
    timings = get(body, "timings")
    cached = as_count(get(timings, "cache_n"))
    return total((as_count(get(timings, "prompt_n")), cached)), as_count(get(timings, "predicted_n")), cached


def _listed_tokens(choice: object) -> int:
    """Return the length of the token list of a choice; 0 where it has none."""
    # Exact where present; log-probabilities come only if the client asked for them.
    token_ids = len(as_list(get(choice, "token_ids")))
    if token_ids:
        return token_ids
    logprobs = get(choice, "logprobs")
    by_kind = sum(len(as_list(get(logprobs, kind))) for kind in ("content", "refusal"))
    return by_kind or len(as_list(get(logprobs, "tokens")))


def _unlisted_tokens(choice: object) -> int | None:
    """Return 1 for a piece with output, 0 without; None for a whole message, whose size is unknown."""
    message = get(choice, "message")
    if message is not None:
        return None if _holds_output(message) else 0
    # A streamed chat has a delta, a streamed completion has its text beside the index.
    delta = get(choice, "delta")
    return int(_holds_output(delta) if delta is not None else bool(get(choice, "text")))


def _holds_output(delta: object) -> bool:
    if any(holds_text(get(delta, field)) for field in _DELTA_TEXT):
        return True
    calls = [get(call, kind) for call in as_list(get(delta, "tool_calls")) for kind in ("function", "custom")]
    calls.append(get(delta, "function_call"))
    return any(get(call, field) for call in calls for field in ("name", "arguments", "input"))


def _error_reason(body: object, choices: list[object]) -> str | None:
    error = get(body, "error")
    # Older vLLM and SGLang put the fields of an error at the top level.
    if not error and get(body, "object") == "error":
        error = body
    if error:
        return reason_of(error)
    # OpenRouter ends a choice that broke off in the engine with this finish reason.
    return ENGINE_ERROR if any(get(choice, "finish_reason") == "error" for choice in choices) else None
