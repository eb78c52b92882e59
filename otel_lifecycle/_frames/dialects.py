"""Which dialect a body is of.  The first one that recognises it reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from json import loads
from typing import Final

from otel_lifecycle._frames.chat import is_chat, read_chat
from otel_lifecycle._frames.frame import Frame
from otel_lifecycle._frames.messages import is_message, read_message
from otel_lifecycle._frames.ollama import is_ollama, read_ollama
from otel_lifecycle._frames.responses import is_response, read_response

# From the most to the least specific marks, because gateways add fields of other dialects.
DIALECTS: Final[tuple[tuple[Callable[[object], bool], Callable[[object], Frame]], ...]] = (
    (is_response, read_response),
    (is_message, read_message),
    (is_ollama, read_ollama),
    # Last: its marks ("usage", "error", "object") stand in bodies of the others too.
    (is_chat, read_chat),
)
DONE: Final = "[DONE]"
UNSIZED: Final = Frame(tokens=((0, None),))
"""Output of unknown size."""

UNKNOWN: Final = Frame(known=False)


def read_body(body: object) -> Frame:
    """Read one body, a mapping or an object; never raises, whatever its fields do when they are read."""
    try:
        for recognises, read in DIALECTS:
            if recognises(body):
                return read(body)
    except Exception:  # noqa: BLE001  # a server's object may raise anything from an attribute; the stream goes on
        return UNKNOWN
    # An empty body is a keep-alive of some gateways.
    return UNKNOWN if body or not isinstance(body, Mapping) else Frame()


def read_data(text: str) -> Frame:
    """Read the data of one server-sent event, or one line of JSON.

    Data that is not JSON is output of unknown size: some servers stream plain text.
    """
    text = text.strip()
    if not text:
        return Frame()
    if text.startswith(DONE):
        return Frame(done=True)
    try:
        body = loads(text)
    except ValueError:
        return UNSIZED
    except RecursionError:  # Nested deeper than the parser goes; no engine writes that.
        return UNKNOWN
    # A bare number, string or list is JSON, and a keep-alive at best: no dialect writes it.
    return read_body(body) if isinstance(body, dict) else Frame()
