"""What is said of one request in words, on its page and on the live page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from otel_lifecycle import semconv
from otel_lifecycle._table.requests.from_span import token_offsets
from otel_lifecycle._table.row import TableRow
from otel_lifecycle._table.text import number, plural, seconds, share, shorten, text


def facts_of(row: TableRow) -> list[tuple[str, str]]:
    """Return the figures that head a request, each with what it is; a dash for what is unknown."""
    found = [(name, seconds(row.get(key))) for name, key in (("TTFT", "ttft"), ("TPOT", "tpot"), ("E2E", "e2e"))]
    found += [("tokens in", number(row.get("input_tokens"))), ("tokens out", number(row.get("output_tokens")))]
    if row.get("bottleneck") is not None:
        found.append((f"bottleneck, {share(row.get('dominant_share'))} of its time", row["bottleneck"]))
    if row.get("bottleneck_cause") is not None:
        found.append(("its cause", text(row["bottleneck_cause"])))
    if row.get("failure_stage") is not None:
        found.append((f"ended in, {text(row.get('reason'))}", row["failure_stage"]))
    return found


def attributes_of(told: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return attributes by name, as people read them: what is packed by its size, and digits that mean something."""
    return [(key, shorten(_shown(key, value), 100)) for key, value in sorted(told.items())]


def _shown(key: str, value: object) -> str:
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if key == semconv.TOKEN_OFFSETS:
        return f"{plural(len(token_offsets({key: value})), 'token')} with a time"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
