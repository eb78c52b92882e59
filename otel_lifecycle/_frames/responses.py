"""OpenAI's responses (``/v1/responses``): a stream of typed events, ``response.<what>``.

The kinds of delta are many and new ones appear (text, reasoning, refusal, arguments of each kind of tool), so every
event ``response.….delta`` with text is output.
"""

from __future__ import annotations

from otel_lifecycle._frames.fields import as_count, as_list, as_text, get
from otel_lifecycle._frames.frame import Frame
from otel_lifecycle._frames.refusals import ENGINE_ERROR, reason_of

_ENDED = {"completed", "failed", "incomplete", "cancelled"}


def is_response(body: object) -> bool:
    """Return whether a body is of this dialect."""
    kind = get(body, "type")
    if isinstance(kind, str) and kind.startswith("response."):
        return True
    if kind == "error":
        # Anthropic nests its error; this dialect has type, code and message side by side.
        return get(body, "error") is None
    return as_text(get(body, "object")) == "response"


def read_response(body: object) -> Frame:
    """Read an event of a stream, or a whole response."""
    kind = get(body, "type")
    if kind == "error":
        # Only the code: the type of this event is "error" itself.
        return Frame(error=reason_of({"code": get(body, "code")}))
    if isinstance(kind, str) and kind.endswith(".delta"):
        return _read_delta(body)
    response = get(body, "response")
    return _read_state(body, whole=True) if response is None else _read_state(response, whole=False)


def _read_delta(body: object) -> Frame:
    if not as_text(get(body, "delta")):
        return Frame()
    listed = len(as_list(get(body, "logprobs")))
    return Frame(tokens=((0, listed or 1),), sized=bool(listed))


def _read_state(response: object, *, whole: bool) -> Frame:
    """Read the state of a response, which the first and the last events of a stream carry."""
    if get(response, "object") != "response" and as_text(get(response, "status")) is None:
        return Frame()
    status = as_text(get(response, "status"))
    ended = status in _ENDED
    # Before the end the figures are null, or those of a part of the answer.
    usage = get(response, "usage") if ended else None
    return Frame(
        # Only the usage tells how many tokens a whole answer has.
        tokens=((0, None),) if whole and as_list(get(response, "output")) else (),
        finish_reasons=((0, _finish_reason(response, status)),) if ended and status is not None else (),
        response_id=as_text(get(response, "id")),
        model=as_text(get(response, "model")),
        input_tokens=as_count(get(usage, "input_tokens")),
        output_tokens=as_count(get(usage, "output_tokens")),
        cached_tokens=as_count(get(get(usage, "input_tokens_details"), "cached_tokens")),
        error=_error_of(response) if status == "failed" else None,
        cancelled=status == "cancelled",
        done=ended,
        whole=whole,
    )


def _finish_reason(response: object, status: str) -> str:
    reason = as_text(get(get(response, "incomplete_details"), "reason"))
    return reason if status == "incomplete" and reason else status


def _error_of(response: object) -> str:
    error = get(response, "error")
    return reason_of(error) if error else ENGINE_ERROR
