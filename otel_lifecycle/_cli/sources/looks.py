"""What a file that is no trace looks like, for the person who took it for one."""

from __future__ import annotations

import re
from typing import Final

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
"""Pattern -> what shows it, the more telling first."""


def like(message: bytes) -> str:
    """Return ``; it looks like ...``, or nothing where it looks like nothing known."""
    for pattern, words in _LOOKS:
        if pattern.search(message):
            return f"; it looks like {words}"
    return ""
