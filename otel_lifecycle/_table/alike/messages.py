"""A message of OTLP JSON, span by span, by the templates of their forms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Final, NamedTuple

import orjson

from otel_lifecycle._table.alike.learning import Place
from otel_lifecycle._table.alike.lists import Known, SpanList, settle
from otel_lifecycle._table.alike.template import OtherForm
from otel_lifecycle._table.sources import otlp_json
from otel_lifecycle._table.sources.intake import Intake
from otel_lifecycle._table.sources.shortcut import ReadMessage
from otel_lifecycle._table.sources.tally import ReadingTally

_SPANS: Final = '"spans":['
_CLOSED: Final = "]}]}]}"
MOST_LISTS: Final = 32
"""Lists of spans in a message, one for each scope of each resource."""
KEPT: Final = 512
"""Places and forms of messages that are remembered."""


class _Message(NamedTuple):
    """A message that was read."""

    lists: Sequence[SpanList]

    def put(self, intake: Intake) -> None:
        """Put all of it into its intake."""
        for one in self.lists:
            one.put(intake)


class AlikeSpans:
    """Reads messages for a reader; see :mod:`otel_lifecycle._table.alike.template`.

    It gives up a message as a whole where it is not certain, before anything of it is counted.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        """Make rows of some columns."""
        self._columns = columns
        self._known = lru_cache(KEPT)(_known)
        self._places = lru_cache(KEPT)(_places)

    def read(self, contents: Sequence[bytes], source: str, line: int) -> list[ReadMessage | None]:
        """Read messages of consecutive lines, from this one on; None for each that has to be parsed."""
        while True:
            found = [self._lists(content, line + at) for at, content in enumerate(contents)]
            try:
                return self._messages(found, source)
            except OtherForm:
                # Once more; no template does so twice.
                continue

    def _messages(self, found: list[list[SpanList] | None], source: str) -> list[ReadMessage | None]:
        try:
            _settle(found, source)
        except otlp_json.MALFORMED:
            # One of them has to be parsed.
            found = [self._alone(lists, source) for lists in found]
        return [None if lists is None else _Message(lists) for lists in found]

    def _alone(self, lists: list[SpanList] | None, source: str) -> list[SpanList] | None:
        try:
            _settle([lists], source)
        except otlp_json.MALFORMED:
            return None
        return lists

    def _lists(self, content: bytes, line: int) -> list[SpanList] | None:
        """Return the lists of a message; None where it has to be parsed."""
        try:
            return self._found(content.decode(), line)
        except otlp_json.MALFORMED:
            return None

    def _found(self, text: str, line: int) -> list[SpanList] | None:
        skeleton, end = "", 0
        lists: list[SpanList] = []
        while (start := text.find(_SPANS, end)) >= 0:
            # In the skeleton, a number stands for the spans of a list: it shows that the list is where it seems to be.
            skeleton += f"{text[end:start]}{_SPANS}{len(lists)}"
            known = self._known(skeleton)
            # All that is before a list is parsed once for each list.
            if known is None or len(lists) == MOST_LISTS:
                return None
            lists.append(SpanList(text, line, known, self._columns))
            end = lists[-1].find(start + len(_SPANS))
            if end < 0:
                return None
        whole = self._places(skeleton + text[end:]) == [one.known.place for one in lists]
        return lists if lists and whole else None


def _settle(messages: Iterable[Sequence[SpanList] | None], source: str) -> None:
    """Make the items of all lists, those of a place together."""
    by_known = defaultdict[Known, list[SpanList]](list)
    for one in chain.from_iterable(filter(None, messages)):
        by_known[one.known].append(one)
    for known, lists in by_known.items():
        try:
            settle(lists, source)
        except OtherForm as other:
            known.make_strict(other.template)
            raise


def _known(skeleton: str) -> Known | None:
    """Return what is known of the list whose number ends a text: nothing yet but its place."""
    places = _places(skeleton + _CLOSED)
    return Known(place=places[-1]) if places else None


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
