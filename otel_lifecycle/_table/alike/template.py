"""A template: the text of a span with holes for its values, and the cells of its row that these fill.

A file of a million requests has a handful of forms of a span: the same keys in the same order.  :func:`learn` takes one
span of a form, puts a marker in place of each value, lets the usual code make the row, and looks where the markers are
in it.  So no rule of a row is told a second time here.  What depends on a value otherwise than by holding it stays
part of the form; the bounds of :class:`Template` leave out the values for which the usual code does something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from operator import eq, le, sub
from typing import Any, Final

import orjson

from otel_lifecycle import semconv
from otel_lifecycle._table.machine import to_json_bytes
from otel_lifecycle._table.requests.troubles import note_troubles
from otel_lifecycle._table.row import row_of_span
from otel_lifecycle._table.sources import otlp_json
from otel_lifecycle._table.sources.intake import Intake
from otel_lifecycle._table.sources.plausibility import LIMITS, MOST
from otel_lifecycle._table.sources.spans import Attributes, MadeRow, Span
from otel_lifecycle._table.sources.tally import ReadingTally

_FIELD: Final = re.compile(
    r'(?:"key":"(?P<attribute>[^"\\]*)","value":\{)?"(?P<kind>(?:trace|span|parentSpan)Id|(?:startT|endT|t)imeUnixNano'
    r'|stringValue|intValue|doubleValue)":(?:"(?P<text>[^"\\\x00-\x1f]+)"|(?P<number>[0-9][0-9.eE+-]*))'
)
_ID: Final = r"(?!0+\")([0-9a-f]{%d})"
_TIME: Final = r"([1-8][0-9]{18})"
_TEXT: Final = r'([^"\\\x00-\x1f]+)'
_INTEGER: Final = r"([0-9]{1,16})"
# Loose, because a strict pattern of numbers takes half as long again: orjson parses them all in one go.
_NUMBER: Final = r"([0-9][0-9.eE+-]*)"
_ANY: Final = r'[^"\\\x00-\x1f]*'
_STRICT: Final = r"(?:(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)"

_FORM: Final = frozenset({semconv.OUTCOME, semconv.SHAPE, semconv.VIOLATIONS})
"""Attributes whose value decides what the row has beside it."""
_COMPUTED: Final = frozenset({"tokens", "gaps", "stalls", "violations"})
"""Columns that are calculated from several values; a span that has one is read as usual."""
LONGEST: Final = 2**15
MOST_HOLES: Final = 256
"""Characters and values of the largest span that a template is made of."""
_NANO: Final = 1e-9
_EPOCH: Final = 1_700_000_000_000_000_000
_TIMES: Final = ("timeUnixNano", "endTimeUnixNano", "startTimeUnixNano")
_SOURCE: Final = "\u241fsource\u241f"
_LINE: Final = 4_100_000_000
_OFFSET: Final = "\u241foffset {}\u241f"
_LIMITS: Final = dict(LIMITS)
_LATEST: Final = 2.0**63


@dataclass(frozen=True, slots=True)
class Place:
    """What spans of one list share."""

    resource: Attributes
    scope: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Template:
    """Reads the spans of one form, many at a time, column by column.

    ``pattern`` has a group for each hole and goes by the lengths of ``texts``, of which every second one is to be a
    hole; without any, it is all there is.  A span that is no request has nothing else but ``counted``, its kind in the
    tally.  ``numbers`` are the holes with numbers: the times of the events in their order, the end and the start of
    the span, and the values, which ``limits`` bound.  ``preempts`` are the events that no other may follow at the same
    time, for that would change the order of the stages.  ``offsets`` are the numbers that are starts and ends of
    stages.  All these make the parts of a row, after one another: the holes, the numbers, the offsets, the source, the
    line and ``constants``; then each of ``joined`` is a text of several parts.  ``ids`` and ``cells`` pick from them.
    """

    pattern: re.Pattern[str]
    texts: Sequence[str] = ()
    counted: str | None = None
    numbers: tuple[int, ...] = ()
    limits: tuple[float, ...] = ()
    events: int = 0
    arrival: int = 0
    preempts: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    constants: tuple[Any, ...] = ()
    joined: tuple[tuple[int, ...], ...] = ()
    ids: tuple[int, int] = (0, 0)
    cells: tuple[int, ...] = ()

    def match(self, text: str, at: int) -> tuple[tuple[str, ...], int] | None:
        """Return what is in the holes of the span that begins at a place, and where it ends; None for another form."""
        matched = self.pattern.match(text, at)
        if matched is None:
            return None
        found = matched.groups()
        if not self.texts:
            return found, matched.end()
        # The whole text at once: the pattern would compare it character by character.
        pieces = [*self.texts]
        pieces[1::2] = found
        return (found, matched.end()) if text.startswith("".join(pieces), at) else None

    def rows(self, found: Sequence[Sequence[str]], source: str, line: int) -> list[MadeRow | None]:
        """Return the rows of the spans whose holes these are; None where a value is beyond the bounds.

        Raises ValueError where one is not JSON.
        """
        texts = list(zip(*found, strict=True))
        numbers = orjson.loads(f"[[{'],['.join([','.join(texts[at]) for at in self.numbers])}]]")
        if not self._within(numbers):
            # Most are: each half is tried by itself.
            half = len(found) // 2
            return self.rows(found[:half], source, line) + self.rows(found[half:], source, line) if half else [None]
        arrivals = numbers[self.arrival]
        offsets = [_as_texts(map(sub, numbers[at], arrivals)) for at in self.offsets]
        parts: list[Iterable[Any]] = [
            *texts,
            *numbers,
            *offsets,
            repeat(source),
            repeat(line),
            *map(repeat, self.constants),
        ]
        parts += [map("".join, zip(*[parts[at] for at in one], strict=False)) for one in self.joined]
        trace_ids, span_ids = (texts[at] for at in self.ids)
        # Constants have no end.
        return list(map(MadeRow, trace_ids, span_ids, zip(*[parts[at] for at in self.cells], strict=False)))

    def _within(self, numbers: Sequence[Sequence[float]]) -> bool:
        end, values = self.events, numbers[self.events + 2 :]
        ordered = [*pairwise(numbers[: end + 1]), (numbers[end + 1], numbers[end])]
        return (
            all(all(map(le, one, other)) for one, other in ordered)
            and all(max(some) <= limit for some, limit in zip(values, self.limits, strict=True))
            and not any(any(map(eq, numbers[at], numbers[at + 1])) for at in self.preempts)
        )


def _as_texts(times: Iterable[int]) -> list[str]:
    # All in one go: orjson writes ten floats in the time that Python takes for one.
    return orjson.dumps([time * _NANO for time in times]).decode()[1:-1].split(",")


def learn(text: str, place: Place, columns: Sequence[str]) -> Template | None:
    """Return a template of the form of a span, which is valid JSON; None for one that only the usual code reads.

    ``columns``: of the rows that it makes.
    """
    # The time that learning takes grows with the square of the size.
    if len(text) > LONGEST or len(_holes(text)) > MOST_HOLES:
        return None
    read = _read(text, place)
    return _of_request(text, place, columns) if read.items else _of_unwanted(text, read.tally)


def _read(text: str, place: Place) -> Intake:
    intake = Intake(source=_SOURCE, line=_LINE, tally=ReadingTally())
    otlp_json.take_span(orjson.loads(text), place.resource, place.scope, intake)
    return intake


def _of_unwanted(text: str, tally: ReadingTally) -> Template | None:
    """Return the template of a span that is counted at most: none of its values matters."""
    kinds = tuple(tally.counts)
    if kinds not in {(), ("other_spans",)}:
        return None
    holes = [
        _Hole(kind="", start=field.start(group), end=field.end(group), pattern=pattern)
        for field in _FIELD.finditer(text)
        for group, pattern in (("text", _ANY), ("number", _STRICT))
        if field[group] is not None
    ]
    # Short spans without the patterns of values, which would tell one from another.
    return Template(pattern=_strict(text, holes), counted=kinds[0] if kinds else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hole:
    """A value in the text of a span, and what may stand in its place."""

    kind: str
    start: int
    end: int
    pattern: str
    limit: float = _LATEST


def _holes(text: str) -> list[_Hole]:
    found = []
    for field in _FIELD.finditer(text):
        quoted, attribute, kind = field["text"] is not None, field["attribute"], field["kind"]
        start, end = field.span("text" if quoted else "number")
        if kind.endswith("Id"):
            pattern = _ID % (end - start)
        elif kind.endswith("Nano"):
            pattern = _TIME
        # Without its key, nobody knows the bounds of a value.
        elif attribute is None or attribute in _FORM or (kind != "intValue" and quoted != (kind == "stringValue")):
            continue
        else:
            pattern = {"stringValue": _TEXT, "intValue": _INTEGER, "doubleValue": _NUMBER}[kind]
        matched = re.compile(pattern).match(text, start)
        if matched is not None and matched.end() == end:
            limit = _LIMITS.get(attribute or "", MOST) if pattern in {_INTEGER, _NUMBER} else _LATEST
            found.append(_Hole(kind=kind, start=start, end=end, pattern=pattern, limit=limit))
    return found


def _marker(number: int, hole: _Hole, variant: int = 0) -> str:
    """Return a value that stands nowhere else in a row; ``number``: of the hole."""
    if hole.kind.endswith("Id"):
        return format(0xABCDE0000 + 0x1000 * variant + number, f"0{hole.end - hole.start}x")
    if hole.kind.endswith("Nano"):
        # In the order of a request: the start, the events as they come, the end.
        place = {"startTimeUnixNano": 0, "endTimeUnixNano": 10**6}.get(hole.kind, number + 1)
        return str(_EPOCH + 1_000_003 * place + 7 * variant)
    kinds = {"stringValue": f"\u241f{variant}{number:04}", "intValue": f"40000{variant}{number:04}"}
    # Ends in a digit that no shorter form of the number leaves out.
    return kinds.get(hole.kind, f"0.7{variant}{number:04}1")


def _marked(text: str, holes: Mapping[int, _Hole], variant: int = 0) -> str:
    """Return the text of a span with a marker in each hole."""
    pieces, at = [], 0
    for number, hole in holes.items():
        pieces += [text[at : hole.start], _marker(number, hole, variant)]
        at = hole.end
    return "".join(pieces) + text[at:]


def _row_of(text: str, place: Place) -> dict[str, Any] | None:
    """Return the row that the usual code makes; None where it does more than that, or calculates."""
    intake = _read(text, place)
    items = [item for item in intake.items if isinstance(item, Span)]
    if len(items) != 1 or semconv.OUTCOME not in items[0].attributes or semconv.TOKEN_OFFSETS in items[0].attributes:
        return None
    note_troubles(items[0], intake.tally)
    row = dict(row_of_span(items[0]))
    return None if intake.tally.counts or not _COMPUTED.isdisjoint(row) else row


def _of_request(text: str, place: Place, columns: Sequence[str]) -> Template | None:
    events = [event.get("name") for event in orjson.loads(text).get("events") or ()]
    holes = dict(enumerate(_holes(text)))
    row = _row_of(_marked(text, holes), place)
    if row is None:
        return None
    # Numbers of holes stay, so that their markers do.
    kept = {number: hole for number, hole in holes.items() if hole.kind in _TIMES or _shows(_marker(number, hole), row)}
    template = _template(text, kept, events, row, columns)
    # The span itself and one with other values: what the template makes of them is what the usual code makes.
    samples = (text, _marked(text, kept, 1))
    agreed = template is not None and all(_agrees(template, one, place, columns) for one in samples)
    return template if agreed else None


def _shows(marker: str, row: Mapping[str, Any]) -> bool:
    """Whether a row has a value and nothing made from it: a number that became a text has a form of its own there."""
    as_text = to_json_bytes([value for value in row.values() if isinstance(value, (str, dict))]).decode()
    return marker in to_json_bytes(row).decode() and not ("." in marker and marker in as_text)


def _template(
    text: str, kept: Mapping[int, _Hole], events: Sequence[Any], row: dict[str, Any], columns: Sequence[str]
) -> Template | None:
    groups = {_marker(number, hole): group for group, (number, hole) in enumerate(kept.items())}
    found = list(kept.values())
    by_kind = [[group for group, hole in enumerate(found) if hole.kind == kind] for kind in _TIMES]
    if [len(one) for one in by_kind] != [len(events), 1, 1]:
        return None
    values = [group for group, hole in enumerate(found) if hole.pattern in {_INTEGER, _NUMBER}]
    numbers = [*by_kind[0], *by_kind[1], *by_kind[2], *values]
    markers = list(groups)
    times = [int(markers[group]) for group in numbers[: len(events) + 2]]
    offsets = _offsets(row, times)
    if offsets is None or not groups.keys() >= {row["trace_id"], row["span_id"]}:
        return None
    # Stages that nobody wants are not worth their text.
    used = offsets if "stages" in columns else []
    parts = _Parts(groups, numbers, len(used))
    cells = [parts.cell(row.get(column)) for column in columns]
    return Template(
        **_form(text, found),
        numbers=tuple(numbers),
        limits=tuple([found[group].limit for group in values]),
        events=len(events),
        arrival=times.index(row["arrival_ns"]),
        preempts=tuple([at for at, name in enumerate(events) if name == "preempt"]),
        offsets=tuple(used),
        constants=tuple(parts.constants),
        joined=tuple(parts.joined),
        ids=(groups[row["trace_id"]], groups[row["span_id"]]),
        cells=tuple(map(parts.place, cells)),
    )


class _Parts:
    """Finds the parts of a template that make the cells of a row; see :class:`Template`."""

    def __init__(self, groups: Mapping[str, int], numbers: Sequence[int], offsets: int) -> None:
        # The number of a hole comes after all holes.
        self._numbers = {group: len(groups) + at for at, group in enumerate(numbers)}
        others = [*(f'"{_OFFSET.format(number)}"' for number in range(offsets)), _SOURCE, str(_LINE)]
        first = len(groups) + len(numbers)
        self._known = {**groups, **{marker: first + at for at, marker in enumerate(others)}}
        self._markers = re.compile(f"({'|'.join(map(re.escape, self._known))})")
        self._first_constant = first + len(others)
        self.constants: list[Any] = []
        self.joined: list[tuple[int, ...]] = []

    def cell(self, value: Any) -> int:
        """Return the part that a value with markers comes from; of texts that are joined, its number from the end."""
        pieces = self._markers.split(to_json_bytes(value).decode())
        nested = isinstance(value, (list, dict))
        if len(pieces) == 1:
            return self._constant(pieces[0] if nested else value)
        if nested:
            places = [self._known[piece] if at % 2 else self._constant(piece) for at, piece in enumerate(pieces)]
            self.joined.append(tuple(places))
            return -len(self.joined)
        at = self._known[pieces[1]]
        return at if pieces[0] else self._numbers.get(at, at)

    def _constant(self, value: Any) -> int:
        self.constants.append(value)
        return self._first_constant + len(self.constants) - 1

    def place(self, at: int) -> int:
        """Return the part that a number from the end stands for, once all constants are known."""
        return at if at >= 0 else self._first_constant + len(self.constants) - 1 - at


def _strict(text: str, holes: Sequence[_Hole]) -> re.Pattern[str]:
    pattern, at = "", 0
    for hole in holes:
        pattern += re.escape(text[at : hole.start]) + hole.pattern
        at = hole.end
    return re.compile(pattern + re.escape(text[at:]))


def _form(text: str, holes: Sequence[_Hole]) -> dict[str, Any]:
    """Return the pattern and the texts of a template."""
    ends = [0, *(hole.end for hole in holes)]
    between = [text[at : hole.start] for at, hole in zip(ends, holes, strict=False)] + [text[ends[-1] :]]
    # The first character is no part of a value, so that none is tried at more than one length.
    told = [re.escape(one[:1]) + f".{{{len(one) - 1}}}" for one in between]
    pattern = "".join([one + hole.pattern for one, hole in zip(told, holes, strict=False)]) + told[-1]
    texts = [""] * (2 * len(between) - 1)
    texts[::2] = between
    return {"pattern": re.compile(pattern, re.DOTALL), "texts": texts}


def _offsets(row: dict[str, Any], times: Sequence[int]) -> list[int] | None:
    """Put markers in a row's stages, and return the times they stand for; None for stages that overlap."""
    found, reached = list[int](), 0
    for stage in row.get("stages", ()):
        start, end = (times.index(row["arrival_ns"] + round(stage[side] * 1e9)) for side in ("start", "end"))
        if stage["stage"] != "preempted":
            # Only stages one after the other keep their order when they have no length.
            if not reached <= start <= end:
                return None
            reached = end
        stage.update(start=_OFFSET.format(len(found)), end=_OFFSET.format(len(found) + 1))
        found += (start, end)
    return found


def _agrees(template: Template, text: str, place: Place, columns: Sequence[str]) -> bool:
    matched, row = template.match(text, 0), _row_of(text, place)
    (made,) = (None,) if matched is None else template.rows([matched[0]], _SOURCE, _LINE)
    if made is None or row is None or made[:2] != (row["trace_id"], row["span_id"]):
        return False
    usual = [orjson.loads(to_json_bytes(row.get(column))) for column in columns]
    # Nested values are texts of JSON already.
    nested = [isinstance(one, (list, dict)) for one in usual]
    return usual == [orjson.loads(cell) if is_json else cell for cell, is_json in zip(made.cells, nested, strict=True)]
