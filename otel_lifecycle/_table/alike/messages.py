"""A message of OTLP JSON, span by span, by the templates of their forms."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

from otel_lifecycle._table.alike.template import Place, Template, learn
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
    """The templates of one place, and which came after which; ``left`` may still be tried.

    ``met`` and ``missed`` count spans.
    """

    place: Place
    templates: list[Template] = field(default_factory=list)
    follows: dict[Template | None, Template] = field(default_factory=dict)
    left: int = TRIED
    met: int = 0
    missed: int = 0


class _Unlike(NamedTuple):
    """A span that no template reads, and its place."""

    raw: Any
    place: Place


_Matched: TypeAlias = tuple[int, tuple[str, ...], int, int]
"""A span that a template reads: its place among those found, its holes, where it begins and ends."""
_Found: TypeAlias = "MadeRow | _Unlike | str | None"
"""A request, a span that has to be read as usual, or the kind of one that is counted at most."""


class AlikeSpans:
    """Takes messages for a reader; see :mod:`otel_lifecycle._table.alike.template`.

    It gives up a message as a whole where it is not certain, before anything of it is counted.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        """Make rows of some columns."""
        self._columns = columns
        self._known = lru_cache(KEPT)(_known)
        self._places = lru_cache(KEPT)(_places)

    def take(self, content: bytes, intake: Intake) -> bool:
        """Put a message into the intake, requests as rows; return False, and do nothing, where it has to be parsed."""
        try:
            found = self._found(content.decode(), intake)
        except otlp_json.MALFORMED:
            return False
        for one in found or ():
            if isinstance(one, MadeRow):
                intake.items.append(one)
            elif isinstance(one, _Unlike):
                otlp_json.take_span(one.raw, one.place.resource, one.place.scope, intake)
            elif one is not None:
                intake.tally.add(one)
        # Those that are parsed count themselves.
        intake.tally.read["spans"] += sum(not isinstance(one, _Unlike) for one in found or ())
        return found is not None

    def _found(self, text: str, intake: Intake) -> list[_Found] | None:
        """Return the spans of a message in their order; None, or one of MALFORMED, where it has to be parsed."""
        skeleton, end = "", 0
        found: list[_Found] = []
        places: list[Place] = []
        while (start := text.find(_SPANS, end)) >= 0:
            # In the skeleton, a number stands for the spans of a list: it shows that the list is where it seems to be.
            skeleton += f"{text[end:start]}{_SPANS}{len(places)}"
            known = self._known(skeleton)
            # All that is before a list is parsed once for each list.
            if known is None or len(places) == MOST_LISTS:
                return None
            reading = _List(text, known, self._columns)
            end = reading.read(start + len(_SPANS))
            if end < 0:
                return None
            found += reading.found(intake.source, intake.line)
            places.append(known.place)
        return found if places and self._places(skeleton + text[end:]) == places else None


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


class _List:
    """One list of spans being read: what is found, and the spans of each template with their place there."""

    def __init__(self, text: str, known: _Known, columns: Sequence[str]) -> None:
        self._text = text
        self._known = known
        self._columns = columns
        self._found: list[_Found] = []
        self._matched: defaultdict[Template, list[_Matched]] = defaultdict(list)

    def read(self, at: int) -> int:
        """Read the spans from a place on and return where the list ends; below 0 where it has to be parsed."""
        text, known = self._text, self._known
        if text.startswith("]", at):
            return at
        last: Template | None = None
        while True:
            # Spans follow each other in the same order, request by request.
            expected = known.follows.get(last)
            for template in known.templates if expected is None else (expected, *known.templates):
                matched = template.match(text, at)
                if matched is not None:
                    holes, end = matched
                    self._matched[template].append((len(self._found), holes, at, end))
                    self._found.append(template.counted)
                    known.met += 1
                    known.follows[last] = template
                    last = template
                    break
            else:
                end = _END_OF(text, at)[1]
                if self._learn(text[at:end]):
                    continue
                # Spans of another kind: to look for the end of each costs more than to parse all.
                if known.missed > TRIED and known.missed > known.met:
                    return -1
            if not text.startswith(",", end):
                return end if text.startswith("]", end) else -1
            at = end + 1

    def _learn(self, span: str) -> bool:
        """Learn the form of a span, or else add it as one to be read as usual."""
        known = self._known
        known.left -= 1
        learned = learn(span, known.place, self._columns) if known.left >= 0 else None
        if learned is None:
            known.missed += 1
            self._found.append(_Unlike(orjson.loads(span), known.place))
        else:
            known.templates.append(learned)
        return learned is not None

    def found(self, source: str, line: int) -> list[_Found]:
        """Return what was read, in its order."""
        known = self._known
        # The forms that come often are tried first.
        known.templates.sort(key=lambda template: -len(self._matched[template]))
        for template, matched in self._matched.items():
            if not template.cells or not matched:
                continue
            rows = template.rows([holes for _, holes, _, _ in matched], source, line)
            for row, (place, _, at, end) in zip(rows, matched, strict=True):
                self._found[place] = _Unlike(orjson.loads(self._text[at:end]), known.place) if row is None else row
            known.missed += rows.count(None)
        return self._found
