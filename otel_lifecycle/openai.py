"""Frames of OpenAI-compatible streams, read for what they say about a request's lifecycle.

A frame is one item of a chat-completion or completion stream, in any form a server has it in hand: a mapping, an
object with attributes, JSON text, or the raw lines of a server-sent event (``str`` or bytes).  The ``openai`` package
is not needed.  Three ways in, from plain to complete::

    read_frame(frame)                                    # -> Frame: tokens by choice, usage, finish reasons, error
    request.stream(frames, tokens=count_tokens)          # one choice, only the tokens
    request.stream(frames, tokens=FrameFeed(request))    # several choices, and everything else a frame tells

What is a token: a text, reasoning, refusal or tool-call delta is one, or as many as the frame's own token list says
(``logprobs.content``, ``logprobs.refusal``, ``logprobs.tokens``, ``token_ids``).  Frames that hold only a role, an
empty string, usage, a keep-alive comment or ``[DONE]`` are none.  A frame of several tokens without such a list looks
like one; a usage figure then puts the count right, nothing can put the gaps right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

__all__ = ["Frame", "FrameFeed", "Marks", "count_tokens", "read_frame"]

_DONE: Final = "[DONE]"
_DELTA_TEXT: Final = ("content", "reasoning_content", "reasoning", "refusal")
"""Fields of a delta the model wrote; engines call the reasoning one or the other."""

_ERROR_WORDS: Final = (
    ("context", "input_too_long"),
    ("too_long", "input_too_long"),
    ("rate_limit", "rate_limited"),
    ("too_many_requests", "rate_limited"),
    ("quota", "rate_limited"),
    ("memory", "out_of_memory"),
    ("timeout", "deadline"),
    ("invalid", "bad_input"),
    ("bad_request", "bad_input"),
    ("badrequest", "bad_input"),
)
_ERROR_CODES: Final = {
    400: "bad_input",
    408: "deadline",
    413: "input_too_long",
    422: "bad_input",
    429: "rate_limited",
    504: "deadline",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What one frame says.

    ``tokens`` holds a pair (choice, tokens) for each choice that has any; the tokens are None where the frame holds an
    unknown number of them.  ``finish_reasons`` holds pairs (choice, reason) in the order of the frame.  Token counts
    are those of the frame's ``usage``, else of llama.cpp's ``timings``, None if it has neither; an output count of 0
    beside output is a server's that does not count, and None too.  ``error`` is the reason (of the closed list) that
    an error frame amounts to; its message is not kept.  ``done`` is the end of the stream, ``whole`` a body that was
    not streamed.
    """

    tokens: tuple[tuple[int, int | None], ...] = ()
    finish_reasons: tuple[tuple[int, str], ...] = ()
    response_id: str | None = None
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    choices: int = 0
    error: str | None = None
    done: bool = False
    whole: bool = False

    @property
    def count(self) -> int | None:
        """Tokens in the frame, over all choices; None if that is not known."""
        if self.whole and self.output_tokens is not None:
            return self.output_tokens
        return _total(n for _, n in self.tokens)


class Marks(Protocol):
    """The part of a request handle that a frame is fed to."""

    def token(self, n: int | None = 1, choice: int = 0) -> None:
        """Mark ``n`` tokens of one choice."""

    def output(self, tokens: int | None = None) -> None:
        """Mark a whole answer."""

    def usage(
        self, *, input_tokens: int | None = None, output_tokens: int | None = None, cached_tokens: int | None = None
    ) -> None:
        """Note the figures the engine counted."""

    def response(
        self,
        *,
        id: str | None = None,
        model: str | None = None,
        finish_reasons: Sequence[str] | None = None,
    ) -> None:
        """Note what the answer says of itself."""

    def cancel(self, reason: str | None = None) -> None:
        """End the request as cancelled."""

    def timeout(self, reason: str | None = None) -> None:
        """End the request as timed out."""

    def fail(self, error: str | None = None) -> None:
        """End the request as failed."""


def count_tokens(frame: object) -> int | None:
    """Return how many tokens a frame holds over all its choices; None for an unknown number.

    The ``tokens`` callable of ``request.stream`` and ``traced`` for a stream of one choice.  Of a body that was not
    streamed it is the usage figure, as ``traced`` wants it for its ``output``.
    """
    return read_frame(frame).count


class FrameFeed:
    """Feeds a request everything its frames tell, and tells ``request.stream`` to mark nothing itself.

    Tokens go to the choice they belong to; usage, response id and model, and finish reasons (in the order of the
    choices, as the convention has it) are noted.  An error frame inside a stream that began well ends the request as
    failed or timed out, the finish reason ``error`` as failed, and ``abort`` as cancelled: a 200 is no success then.

    Call it with every frame, or hand it to ``request.stream`` as ``tokens``.
    """

    __slots__ = ("_closed", "_counted", "_ended", "_reasons", "_request", "_told")

    def __init__(self, request: Marks) -> None:
        self._request = request
        self._reasons: dict[int, str] = {}
        self._counted: dict[int, int] = {}
        self._closed: dict[int, int] = {}
        self._told = False
        self._ended = False

    def __call__(self, item: object) -> int:
        """Feed one frame; return 0, since its tokens are marked by then."""
        frame = item if isinstance(item, Frame) else read_frame(item)
        self._mark(frame)
        if not self._ended:
            self._note(frame)
            self._end(frame)
        return 0

    def _mark(self, frame: Frame) -> None:
        if frame.whole:
            self._request.output(frame.count)
            return
        for choice, tokens in frame.tokens:
            self._request.token(tokens, choice)
            self._counted[choice] = self._counted.get(choice, 0) + (tokens or 0)

    def _note(self, frame: Frame) -> None:
        if not self._told and (frame.response_id or frame.model):
            self._told = True
            self._request.response(id=frame.response_id, model=frame.model)
        if frame.finish_reasons:
            self._reasons.update(frame.finish_reasons)
            self._request.response(finish_reasons=[self._reasons[choice] for choice in sorted(self._reasons)])
        output = self._total_of(frame)
        # A figure of 0 for the input is one the server has not counted yet, or never does.
        if frame.input_tokens or output is not None or frame.cached_tokens is not None:
            self._request.usage(
                input_tokens=frame.input_tokens or None, output_tokens=output, cached_tokens=frame.cached_tokens
            )

    def _end(self, frame: Frame) -> None:
        aborted = any(reason == "abort" for _, reason in frame.finish_reasons)
        self._ended = frame.error is not None or aborted
        if frame.error == "deadline":
            self._request.timeout(frame.error)
        elif frame.error is not None:
            self._request.fail(frame.error)
        elif aborted:
            self._request.cancel()

    def _total_of(self, frame: Frame) -> int | None:
        """Return the figure of a frame where it counts the whole answer, as far as that has come.

        Running figures (vLLM's ``continuous_usage_stats``) are not final, and of several choices some servers count
        each by itself (there vLLM's running figures and llama.cpp's last ones): such a figure is below what the
        frames have shown, and they add up once every choice has closed with one.  A 0 after output is no count.
        """
        figure = frame.output_tokens
        if figure is None or frame.whole or (frame.choices and not frame.finish_reasons):
            return None
        if frame.choices == 1:
            self._closed[frame.finish_reasons[0][0]] = figure
            if len(self._closed) > 1 and self._closed.keys() >= self._counted.keys():
                figure = sum(self._closed.values())
        partial = len(self._counted) > 1 and figure < sum(self._counted.values())
        return None if partial or (figure == 0 and self._counted) else figure


def read_frame(frame: object) -> Frame:
    """Read a frame in whatever form it comes; never raises.

    Text may hold several server-sent events, or several of their lines: their tokens are added up, and what the later
    one says of the answer stands.  A ``data:`` line that is not JSON is one token event of unknown size.
    """
    if isinstance(frame, (bytes, bytearray, memoryview)):
        frame = bytes(frame).decode("utf-8", "replace")
    if isinstance(frame, str):
        return _merge(list(_read_lines(frame)))
    try:
        return _read_body(frame)
    except (AttributeError, KeyError, TypeError, ValueError):
        return Frame()


# ------------------------------------------------------------------------------------------------ text


def _read_lines(text: str) -> Iterator[Frame]:
    # Not str.splitlines: JSON may hold a raw U+2028 or U+0085, which end no line of a server-sent event.
    if text.lstrip().startswith("{"):
        yield _read_json(text)
        return
    for line in re.split(r"\r\n|\n|\r", text):
        field, colon, value = line.partition(":")
        if colon and field == "data":
            yield _read_json(value.strip())
        elif colon and field == "error":
            yield _read_json(f'{{"error": {value}}}')
        elif not colon:
            yield Frame(done=line.strip() == _DONE)


def _read_json(text: str) -> Frame:
    if not text:
        return Frame()
    if text.startswith(_DONE):
        return Frame(done=True)
    try:
        body = json.loads(text)
    except ValueError:
        return Frame(tokens=((0, None),))
    return read_frame(body) if isinstance(body, dict) else Frame()


def _merge(frames: list[Frame]) -> Frame:
    if len(frames) == 1:
        return frames[0]
    tokens: dict[int, int | None] = {}
    for choice, n in (pair for frame in frames for pair in frame.tokens):
        tokens[choice] = _total((tokens.get(choice, 0), n))
    return Frame(
        tokens=tuple(tokens.items()),
        finish_reasons=tuple(pair for frame in frames for pair in frame.finish_reasons),
        response_id=_last(frame.response_id for frame in frames),
        model=_last(frame.model for frame in frames),
        input_tokens=_last(frame.input_tokens for frame in frames),
        output_tokens=_last(frame.output_tokens for frame in frames),
        cached_tokens=_last(frame.cached_tokens for frame in frames),
        choices=sum(frame.choices for frame in frames),
        error=_last(frame.error for frame in frames),
        done=any(frame.done for frame in frames),
        whole=any(frame.whole for frame in frames),
    )


# ------------------------------------------------------------------------------------------------ bodies


def _read_body(body: object) -> Frame:
    choices = _list(_get(body, "choices"))
    reasons = tuple((_index(choice), reason) for choice in choices if (reason := _text(_get(choice, "finish_reason"))))
    counts = ((_index(choice), _choice_tokens(choice)) for choice in choices)
    tokens = tuple((choice, n) for choice, n in counts if n != 0)
    read, written, cached = _figures(body)
    return Frame(
        tokens=tokens,
        finish_reasons=reasons,
        response_id=_text(_get(body, "id")),
        model=_text(_get(body, "model")),
        input_tokens=read,
        output_tokens=None if written == 0 and tokens else written,
        cached_tokens=cached,
        choices=len(choices),
        error=_error_reason(body, choices),
        whole=any(_get(choice, "message") is not None for choice in choices),
    )


def _figures(body: object) -> tuple[int | None, int | None, int | None]:
    """Return the tokens of input, output and cache that the engine counted."""
    usage = _get(body, "usage")
    if usage:
        cached = _integer(_get(_get(usage, "prompt_tokens_details"), "cached_tokens"))
        return _integer(_get(usage, "prompt_tokens")), _integer(_get(usage, "completion_tokens")), cached
    # llama.cpp closes a stream with its timings, asked for usage or not; prompt_n is the input that was not cached.
    timings = _get(body, "timings")
    cached = _integer(_get(timings, "cache_n"))
    return _total((_integer(_get(timings, "prompt_n")), cached)), _integer(_get(timings, "predicted_n")), cached


def _choice_tokens(choice: object) -> int | None:
    """Count the tokens of one choice: by its token list if it has one, else by whether it holds any output."""
    listed = _listed_tokens(choice)
    if listed:
        return listed
    message = _get(choice, "message")
    if message is not None:
        return None if _holds_output(message) else 0
    delta = _get(choice, "delta")
    return int(_holds_output(delta) if delta is not None else bool(_get(choice, "text")))


def _listed_tokens(choice: object) -> int:
    token_ids = len(_list(_get(choice, "token_ids")))
    if token_ids:
        return token_ids
    logprobs = _get(choice, "logprobs")
    by_kind = sum(len(_list(_get(logprobs, kind))) for kind in ("content", "refusal"))
    return by_kind or len(_list(_get(logprobs, "tokens")))


def _holds_output(delta: object) -> bool:
    if any(_get(delta, field) for field in _DELTA_TEXT):
        return True
    calls = [_get(call, kind) for call in _list(_get(delta, "tool_calls")) for kind in ("function", "custom")]
    calls.append(_get(delta, "function_call"))
    return any(_get(call, field) for call in calls for field in ("name", "arguments", "input"))


def _error_reason(body: object, choices: list[object]) -> str | None:
    """Map an error to one of the closed list of reasons by its type and code, in the forms engines send it."""
    error = _get(body, "error")
    if not error and _get(body, "object") == "error":
        error = body
    if not error:
        ended_badly = any(_get(choice, "finish_reason") == "error" for choice in choices)
        return "engine_error" if ended_badly else None
    words = f"{_get(error, 'type')} {_get(error, 'code')}".lower().replace(" ", "_").replace("-", "_")
    for word, reason in _ERROR_WORDS:
        if word in words:
            return reason
    code = _integer(_get(error, "code"))
    return _ERROR_CODES.get(code, "engine_error") if code is not None else "engine_error"


# ------------------------------------------------------------------------------------------------ values


def _get(body: object, name: str) -> Any:
    return body.get(name) if isinstance(body, Mapping) else getattr(body, name, None)


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _integer(value: object) -> int | None:
    """Return a count as it is; anything that cannot be one is not known."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _index(choice: object) -> int:
    return _integer(_get(choice, "index")) or 0


def _total(counts: Iterable[int | None]) -> int | None:
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def _last(values: Iterable[Any]) -> Any:
    known = [value for value in values if value is not None]
    return known[-1] if known else None
