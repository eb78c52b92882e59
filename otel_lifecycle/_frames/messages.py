"""Anthropic's messages (``/v1/messages``): a stream of typed events, or one message."""

from __future__ import annotations

from otel_lifecycle._core.tokens import total
from otel_lifecycle._frames.fields import as_count, as_list, as_text, get
from otel_lifecycle._frames.frame import Frame
from otel_lifecycle._frames.refusals import reason_of

_EVENTS = {
    "message_start",
    "message_delta",
    "message_stop",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "ping",
    "message",
}
_DELTA_TEXT = ("text", "thinking", "partial_json")
"""Fields of a delta that the model wrote; ``signature`` and ``citation`` are not output of the model."""


def is_message(body: object) -> bool:
    """Return whether a body is of this dialect."""
    kind = get(body, "type")
    return (isinstance(kind, str) and kind in _EVENTS) or (kind == "error" and get(body, "error") is not None)


def read_message(body: object) -> Frame:
    """Read an event of a stream, or a whole message."""
    kind = get(body, "type")
    if kind == "error":
        return Frame(error=reason_of(get(body, "error")))
    if kind == "content_block_delta":
        # The dialect has no token lists: a delta counts as one token until the final usage corrects it.
        delta = get(body, "delta")
        return Frame(tokens=((0, 1),)) if any(as_text(get(delta, field)) for field in _DELTA_TEXT) else Frame()
    if kind == "message_start":
        return _read_start(get(body, "message"))
    if kind == "message_delta":
        return _read_end(body)
    return _read_whole(body) if kind == "message" else Frame(done=kind == "message_stop")


def _read_start(message: object) -> Frame:
    # Its output figure counts what was written so far, often 1; the message_delta has the final one.
    usage = get(message, "usage")
    return Frame(
        response_id=as_text(get(message, "id")),
        model=as_text(get(message, "model")),
        input_tokens=_input_tokens(usage),
        cached_tokens=as_count(get(usage, "cache_read_input_tokens")),
    )


def _read_end(body: object) -> Frame:
    reason = as_text(get(get(body, "delta"), "stop_reason"))
    usage = get(body, "usage")
    return Frame(
        finish_reasons=() if reason is None else ((0, reason),),
        input_tokens=_input_tokens(usage),
        output_tokens=as_count(get(usage, "output_tokens")),
        cached_tokens=as_count(get(usage, "cache_read_input_tokens")),
    )


def _read_whole(body: object) -> Frame:
    reason = as_text(get(body, "stop_reason"))
    usage = get(body, "usage")
    return Frame(
        tokens=((0, None),) if as_list(get(body, "content")) else (),
        finish_reasons=() if reason is None else ((0, reason),),
        response_id=as_text(get(body, "id")),
        model=as_text(get(body, "model")),
        input_tokens=_input_tokens(usage),
        output_tokens=as_count(get(usage, "output_tokens")),
        cached_tokens=as_count(get(usage, "cache_read_input_tokens")),
        whole=True,
    )


def _input_tokens(usage: object) -> int | None:
    """Return all tokens of the input: this dialect counts those read from and written to the cache apart."""
    fresh = as_count(get(usage, "input_tokens"))
    cached = (as_count(get(usage, f"cache_{kind}_input_tokens")) or 0 for kind in ("read", "creation"))
    return total((fresh, *cached))
