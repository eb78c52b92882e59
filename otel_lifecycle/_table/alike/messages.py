"""A message of OTLP JSON, span by span, by the templates of their forms."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

from otel_lifecycle._table.alike.template import Place, Template, learn
from otel_lifecycle._table.machine import to_json_bytes
from otel_lifecycle._table.sources import otlp_json
from otel_lifecycle._table.sources.intake import Intake
from otel_lifecycle._table.sources.spans import MadeRow
from otel_lifecycle._table.sources.tally import ReadingTally

_SPANS: Final = '"spans":['
_CLOSED: Final = "]}]}]}"
_END_OF: Final = json.JSONDecoder().raw_decode
TRIED: Final = 64
"""Spans of one place from which a template is made or tried: each takes as long as a hundred spans."""
MOST_LISTS: Final = 32
"""Lists of spans in a message, one for each scope of each resource."""
KEPT: Final = 512
"""Places and forms of messages that are remembered."""


@dataclass(slots=True, kw_only=True)
class _Known:
    """The templates of one place; ``left`` may still be tried, ``met`` and ``missed`` count spans."""

    place: Place
    templates: list[Template] = field(default_factory=list)
    left: int = TRIED
    met: int = 0
    missed: int = 0


class _Unlike(NamedTuple):
    """A span that no template reads, and its place."""

    raw: Any
    place: Place


_Found: TypeAlias = "MadeRow | _Unlike | str | None"
"""A request, a span that has to be read as usual, or the kind of one that is counted at most."""


class AlikeSpans:
    """Takes messages for a reader; see :mod:`otel_lifecycle._table.alike.template`.

    It gives up a message as a whole where it is not certain, before anything of it is counted.
    """

    def __init__(self) -> None:
        self._known = lru_cache(KEPT)(_known)
        self._places = lru_cache(KEPT)(_places)

    def take(self, content: bytes, intake: Intake) -> bool:
        """Put a message into the intake, requests as rows; return False, and do nothing, where it has to be parsed."""
        try:
            found = self._found(content.decode(), intake)
        except otlp_json.MALFORMED:
            return False
        for one in found or ():
            if isinstance(one, _Unlike):
                otlp_json.take_span(one.raw, one.place.resource, one.place.scope, intake)
                continue
            intake.tally.read["spans"] += 1
            if isinstance(one, MadeRow):
                intake.items.append(one)
            elif one is not None:
                intake.tally.add(one)
        return found is not None

    def _found(self, text: str, intake: Intake) -> list[_Found] | None:
        """Return the spans of a message in their order; None, or one of MALFORMED, where it has to be parsed."""
        skeleton, *lists = text.split(_SPANS)
        # All that is before a list is parsed once for each list.
        if len(lists) > MOST_LISTS:
            return None
        found: list[_Found] = []
        places = []
        source = to_json_bytes(intake.source).decode()[1:-1]
        for number, spans in enumerate(lists):
            # In the skeleton, a number stands for the spans of a list: it shows that the list is where it seems to be.
            skeleton += f"{_SPANS}{number}"
            known = self._known(skeleton)
            end = None if known is None else _read_list(spans, known, source, intake.line, found)
            if known is None or end is None:
                return None
            places.append(known.place)
            skeleton += spans[end:]
        return found if lists and self._places(skeleton) == places else None


def _known(skeleton: str) -> _Known | None:
    """Return what is known of the list whose number ends a text: nothing yet but its place."""
    places = _places(skeleton + _CLOSED)
    return _Known(place=places[-1]) if places else None


def _places(skeleton: str) -> list[Place] | None:
    """Return the place of each list of spans, in order; None for a message of another structure."""
    document = orjson.loads(skeleton)
    if not isinstance(document, dict) or document.keys() != {"resourceSpans"}:
        return None
    intake = Intake(source="", tally=ReadingTally())
    found: list[Place] = []
    for batch in document["resourceSpans"]:
        resource = otlp_json.resource_of(batch, intake)
        for scope in batch["scopeSpans"]:
            if scope["spans"] != [len(found)] or "instrumentationLibrarySpans" in batch:
                return None
            found.append(Place(resource, otlp_json.scope_name(scope)))
    return None if intake.tally.counts else found


def _read_list(spans: str, known: _Known, source: str, line: int, found: list[_Found]) -> int | None:
    """Add the spans of a list to those found; return where it ends, None where the message has to be parsed."""
    at = 0
    while not spans.startswith("]", at):
        if at and not spans.startswith(",", at):
            return None
        at += at > 0
        one, at = _read_span(spans, at, known, source, line)
        if isinstance(one, _Unlike):
            known.missed += 1
            # Spans of another kind: to look for the end of each costs more than to parse all.
            if known.missed > TRIED and known.missed > known.met:
                return None
        else:
            known.met += 1
        found.append(one)
    return at


def _read_span(spans: str, at: int, known: _Known, source: str, line: int) -> tuple[_Found, int]:
    """Return the span that begins at a place, and where it ends."""
    for number, template in enumerate(known.templates):
        matched = template.pattern.match(spans, at)
        if matched is None:
            continue
        if number:
            # The form that comes often moves to the front.
            known.templates[number - 1 : number + 1] = template, known.templates[number - 1]
        if not template.pieces:
            return template.counted, matched.end()
        row = template.row(matched.groups(), source, line)
        return (_Unlike(orjson.loads(matched[0]), known.place) if row is None else row), matched.end()
    end = _END_OF(spans, at)[1]
    text = spans[at:end]
    if known.left:
        known.left -= 1
        learned = learn(text, known.place)
        if learned is not None:
            known.templates.append(learned)
            return _read_span(spans, at, known, source, line)
    return _Unlike(orjson.loads(text), known.place), end
