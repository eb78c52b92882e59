"""What a file that is not a trace looks like, for the error message."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from otel_lifecycle._table.text import printable, shorten

_LOOKS: Final = (
    (
        re.compile(rb'"context":\s*\{\s*"trace_id":\s*"0x'),
        "the output of Python's ConsoleSpanExporter, which no program reads; export OTLP instead",
    ),
    (
        re.compile(rb'"resource_(?:spans|metrics|logs)"'),
        "OTLP with snake_case names; OTLP's own JSON has camelCase (resourceSpans)",
    ),
    (
        re.compile(rb"\}\s*\{|\]\s*\["),
        "several JSON documents of many lines each; write a document a line (jq -c .)",
    ),
)
"""Pattern -> what it shows, the more telling first."""

_KEYS: Final[tuple[tuple[frozenset[str], str], ...]] = (
    (frozenset({"event", "timestamp"}), "a log of lifecycle events; 'otel-lifecycle replay' reads it"),
    (frozenset({"traces", "metrics"}), "the answer of a search in Tempo, which has no spans; fetch the traces by id"),
    (frozenset({"traceID", "rootServiceName"}), "a line of a search in Tempo, which has no spans; fetch the trace"),
    (frozenset({"traceId", "localEndpoint"}), "a span of Zipkin; export OTLP instead"),
    (frozenset({"traceEvents"}), "a profile for Chrome's trace viewer"),
    (frozenset({"status", "data"}), "the answer of a Prometheus"),
)
"""Keys of a JSON object -> what has them."""


def like(message: bytes) -> str:
    """Return ``; it looks like ...``, or nothing where it looks like nothing known."""
    for pattern, words in _LOOKS:
        if pattern.search(message):
            return f"; it looks like {words}"
    return ""


def like_document(document: object, message: bytes) -> str:
    """Return what a JSON document looks like: something known, or else what its outermost keys are."""
    known = like(message)
    if known or not isinstance(document, Mapping):
        return known or f"; it looks like {_KINDS.get(type(document), 'a single value')}"
    for keys, words in _KEYS:
        if keys <= document.keys():
            return f"; it looks like {words}"
    # Keys come from a foreign file: no control characters to the terminal, and not a page of them.
    names = ", ".join(printable(str(key)) for key in list(document)[:6])
    return f"; it looks like an object with the keys {shorten(names, 80)}" if names else "; it is an empty object"


_KINDS: Final[Mapping[type, str]] = {str: "a text", int: "a number", float: "a number", list: "a list"}
