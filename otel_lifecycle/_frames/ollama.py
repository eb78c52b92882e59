"""Ollama's own API (``/api/chat`` and ``/api/generate``): one JSON document a line, the last one with its figures."""

from __future__ import annotations

from collections.abc import Mapping

from otel_lifecycle._frames.fields import as_count, as_list, as_seconds, as_text, get
from otel_lifecycle._frames.frame import Frame
from otel_lifecycle._frames.refusals import ENGINE_ERROR


def is_ollama(body: object) -> bool:
    """Return whether a body is of this dialect; its errors are bare text."""
    # Both fields stand in every line of Ollama's, and together in no other dialect.
    if isinstance(get(body, "done"), bool) and as_text(get(body, "model")) is not None:
        return True
    return isinstance(body, Mapping) and as_text(body.get("error")) is not None and len(body) == 1


def read_ollama(body: object) -> Frame:
    """Read a line of a stream, a whole answer, or an error."""
    if get(body, "error"):
        return Frame(error=ENGINE_ERROR)
    message = get(body, "message")
    written = _holds_output(message if message is not None else body)
    done = get(body, "done") is True
    # The last line of a stream holds no text; a last line with text is a whole answer.
    whole = done and written
    reason = as_text(get(body, "done_reason"))
    return Frame(
        tokens=((0, None if whole else 1),) if written else (),
        finish_reasons=((0, reason),) if done and reason is not None else (),
        model=as_text(get(body, "model")),
        input_tokens=as_count(get(body, "prompt_eval_count")),
        output_tokens=as_count(get(body, "eval_count")),
        done=done,
        whole=whole,
        load_time=as_seconds(get(body, "load_duration")),
        prefill_time=as_seconds(get(body, "prompt_eval_duration")),
        decode_time=as_seconds(get(body, "eval_duration")),
        total_time=as_seconds(get(body, "total_duration")),
    )


def _holds_output(part: object) -> bool:
    if any(as_text(get(part, field)) for field in ("content", "response", "thinking")):
        return True
    return bool(as_list(get(part, "tool_calls")))
