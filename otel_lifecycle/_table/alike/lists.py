"""Lists of spans, read by the templates that are known in their place."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress, pairwise, repeat
from operator import not_
from typing import Any, Final

import orjson

from otel_lifecycle._table.alike.learning import Place, learn
from otel_lifecycle._table.alike.template import Template
from otel_lifecycle._table.sources import otlp_json
from otel_lifecycle._table.sources.intake import Intake
from otel_lifecycle._table.sources.made_rows import MadeRows, in_order

_END_OF: Final = json.JSONDecoder().raw_decode
TRIED: Final = 64
"""Spans of one place from which a template is made or tried: each takes as long as a hundred spans."""


@dataclass(slots=True, kw_only=True, eq=False)
class Known:
    """The templates of one place, and which is expected after which; ``left`` may still be tried.

    ``met`` and ``missed`` count spans.
    """

    place: Place
    templates: list[Template] = field(default_factory=list)
    follows: dict[Template | None, Template] = field(default_factory=dict)
    left: int = TRIED
    met: int = 0
    missed: int = 0

    def learn(self, span: str, columns: Sequence[str]) -> Template | None:
        """Return a template of a new form, which is known from then on; None for a span that has to be parsed."""
        self.left -= 1
        learned = learn(span, self.place, columns) if self.left >= 0 else None
        if learned is not None:
            self.templates.append(learned)
        return learned

    def make_strict(self, template: Template) -> None:
        """Let a template take no more spans of another form."""
        self.templates[self.templates.index(template)] = template.strict()
        self.follows.clear()

    def expect(self, templates: Sequence[Template]) -> None:
        """Expect spans in the order in which they mostly came."""
        # The last to be set is the one that came most often.
        for (last, template), _ in reversed(Counter(pairwise(templates)).most_common()):
            self.follows[last] = template
        often = Counter(templates)
        self.templates.sort(key=lambda template: -often[template])
        if often:
            self.follows[None] = self.templates[0]


class SpanList:
    """A list of spans of a message: the template of each with what it matched, or None and the span's text.

    ``line``: of the message.  ``items``: once it is settled, its requests in their order, as rows or as spans that have
    to be parsed.
    """

    def __init__(self, text: str, line: int, known: Known, columns: Sequence[str]) -> None:
        self.known = known
        self.line = line
        self.templates: list[Template | None] = []
        self.matched: list[Any] = []
        self.items: list[MadeRows | Any] = []
        self._text = text
        self._columns = columns

    def find(self, at: int) -> int:
        """Find the spans from a place on and return where the list ends; below 0 where the message has to be parsed."""
        text, known = self._text, self.known
        if text[at] == "]":
            return at
        last: Template | None = None
        missed = 0
        while True:
            # Spans follow each other in the same order, request by request.
            template = known.follows.get(last)
            matched = None if template is None else template.pattern.match(text, at)
            if matched is None:
                template, matched = self._unexpected(at)
            self.templates.append(template)
            if matched is not None:
                self.matched.append(matched)
                end = matched.end()
                last = template
            else:
                end = _END_OF(text, at)[1]
                self.matched.append(text[at:end])
                known.missed += 1
                missed += 1
                # Spans of another kind: to look for the end of each costs more than to parse all.
                if TRIED < known.missed > known.met + len(self.matched) - missed:
                    return -1
            if text[end] != ",":
                break
            at = end + 1
        known.met += len(self.matched) - missed
        return end if text[end] == "]" else -1

    def _unexpected(self, at: int) -> tuple[Template, re.Match[str]] | tuple[None, None]:
        """Return the template of a span that is not of the expected form, learned where no other reads it."""
        for template in self.known.templates:
            matched = template.pattern.match(self._text, at)
            if matched is not None:
                return template, matched
        learned = self.known.learn(self._text[at : _END_OF(self._text, at)[1]], self._columns)
        matched = None if learned is None else learned.pattern.match(self._text, at)
        return (None, None) if learned is None or matched is None else (learned, matched)

    def put(self, intake: Intake) -> None:
        """Put what was found into the intake of the message."""
        for item in self.items:
            if isinstance(item, MadeRows):
                intake.items.append(item)
                intake.tally.read["spans"] += item.size
            else:
                # It counts itself.
                otlp_json.take_span(item, self.known.place.resource, self.known.place.scope, intake)
        others = Counter([one for one in self.templates if one is not None and one.cells is None])
        for template, number in others.items():
            intake.tally.read["spans"] += number
            if template.counted is not None:
                intake.tally.add(template.counted, number=number)


def settle(lists: Sequence[SpanList], source: str) -> None:
    """Make the items of some lists of one place.

    Raises OtherForm where a template took a span of another form, one of MALFORMED where a message has to be parsed.
    """
    templates = list(chain.from_iterable([one.templates for one in lists]))
    lists[0].known.expect([template for template in templates if template is not None])
    places = defaultdict[Template, list[int]](list)
    for place, template in enumerate(templates):
        if template is not None and template.cells is not None:
            places[template].append(place)
    matched = list(chain.from_iterable([one.matched for one in lists]))
    lines = list(chain.from_iterable([repeat(one.line, len(one.matched)) for one in lists]))
    unlike = [place for place, template in enumerate(templates) if template is None]
    blocks, order = list[MadeRows](), list[int]()
    for template, those in places.items():
        made, sound = template.rows([matched[at] for at in those], source, [lines[at] for at in those])
        unlike += compress(those, map(not_, sound))
        if made is not None:
            blocks.append(made)
            order += compress(those, sound)
    rows = in_order(blocks, order)
    order.sort()
    unlike.sort()
    begin = 0
    for one in lists:
        end = begin + len(one.matched)
        parsed = unlike[bisect_left(unlike, begin) : bisect_left(unlike, end)]
        one.items = list(_items(rows, order, {at: matched[at] for at in parsed}, begin, end))
        begin = end


def _items(
    rows: MadeRows, order: Sequence[int], parsed: Mapping[int, Any], begin: int, end: int
) -> Iterator[MadeRows | Any]:
    """Yield the rows whose places are within some bounds, and the spans to be parsed between them."""
    row = bisect_left(order, begin)
    for place in (*parsed, end):
        stop = bisect_left(order, place)
        if row < stop:
            yield rows.between(row, stop)
        if place in parsed:
            span = parsed[place]
            yield orjson.loads(span if isinstance(span, str) else span.group())
        row = stop
