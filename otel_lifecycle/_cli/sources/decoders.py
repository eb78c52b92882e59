"""One interface for every JSON document that holds spans: find the decoder of a document, and call it."""

from __future__ import annotations

from typing import Protocol

from otel_lifecycle._cli.sources import jaeger, otlp_json
from otel_lifecycle._cli.sources.intake import Intake


class Decoder(Protocol):
    """Puts the wanted items of a decoded JSON document into an intake, and counts the rest there."""

    def __call__(self, document: object, intake: Intake, /) -> None:
        """Decode one document; nothing is raised for what cannot be read."""


def decoder_of(document: object) -> Decoder | None:
    """Return the decoder of a document: OTLP in any wrapper, or Jaeger's own form; None where it is neither."""
    if otlp_json.is_otlp(document):
        return otlp_json.decode
    return jaeger.decode if jaeger.is_jaeger(document) else None
