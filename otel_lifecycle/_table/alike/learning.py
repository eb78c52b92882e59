"""How a template is learned from one span of a form.

:func:`learn` puts a marker in place of each value, lets the usual code make the row, and looks where the markers are in
it.  So no rule of a row is told a second time here.  What depends on a value otherwise than by holding it stays part of
the form; the bounds of :class:`Cells` leave out the values for which the usual code does something else.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import orjson

from otel_lifecycle import semconv
from otel_lifecycle._table.alike.template import Cells, Template
from otel_lifecycle._table.machine import to_json_bytes
from otel_lifecycle._table.requests.troubles import note_troubles
from otel_lifecycle._table.row import row_of_span
from otel_lifecycle._table.sources import otlp_json
from otel_lifecycle._table.sources.intake import Intake
from otel_lifecycle._table.sources.plausibility import LIMITS, MOST
from otel_lifecycle._table.sources.spans import Attributes, Span
from otel_lifecycle._table.sources.tally import ReadingTally

_FIELD: Final = re.compile(
    r'(?:"key":"(?P<attribute>[^"\\]*)","value":\{)?"(?P<kind>(?:trace|span|parentSpan)Id|(?:startT|endT|t)imeUnixNano'
    r'|stringValue|intValue|doubleValue)":(?:"(?P<text>[^"\\\x00-\x1f]+)"|(?P<number>[0-9][0-9.eE+-]*))'
)
_ID: Final = r"(?!0+\")[0-9a-f]{%d}"
_TIME: Final = r"[1-8][0-9]{18}"
_TEXT: Final = r'[^"\\\x00-\x1f]+'
_INTEGER: Final = r"[0-9]{1,16}"
_NUMBER: Final = r"[0-9][0-9.eE+-]*"
_ALL: Final = "+" if sys.version_info >= (3, 11) else ""
"""After a quantifier: do not try again with fewer characters, since what follows a value is not part of it."""
_ANY: Final = r'[^"\\\x00-\x1f]*'
_STRICT: Final = r"(?:(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)"

_FORM: Final = frozenset({semconv.OUTCOME, semconv.SHAPE, semconv.VIOLATIONS})
"""Attributes whose value decides what the row has beside it."""
_COMPUTED: Final = frozenset({"tokens", "gaps", "stalls", "violations"})
"""Columns that are calculated from several values; a span that has one is read as usual."""
LONGEST: Final = 2**15
MOST_HOLES: Final = 256
"""Characters and values of the largest span that a template is made of."""
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
    counted = kinds[0] if kinds else None
    patterns = tuple([hole.pattern for hole in holes])
    # Short spans without the patterns of values, which would tell one from another.
    return Template(literals=_literals(text, holes), holes=patterns, counted=counted, exact=True)


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
    told = offsets if "stages" in columns else []
    parts = _Parts(groups, numbers, len(told))
    cells = tuple(map(parts.place, [parts.cell(row.get(column)) for column in columns]))
    ids = [group for group, hole in enumerate(found) if hole.kind.endswith("Id")]
    used = {*cells, *chain.from_iterable(parts.joined), *ids}
    made = Cells(
        numbers=tuple(numbers),
        limits=tuple([found[group].limit for group in values]),
        events=len(events),
        arrival=times.index(row["arrival_ns"]),
        preempts=tuple([at for at, name in enumerate(events) if name == "preempt"]),
        offsets=tuple(told),
        constants=tuple(parts.constants),
        joined=tuple(parts.joined),
        trace_id=groups[row["trace_id"]],
        span_id=groups[row["span_id"]],
        ids=tuple(ids),
        columns=cells,
        texts=frozenset(used.intersection(range(len(found)))),
    )
    return Template(literals=_literals(text, found), holes=tuple(map(_loose, found)), cells=made)


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


def _literals(text: str, holes: Sequence[_Hole]) -> tuple[str, ...]:
    """Return the texts before, between and after holes."""
    ends = [0, *(hole.end for hole in holes)]
    starts = [*(hole.start for hole in holes), len(text)]
    return tuple([text[end:start] for end, start in zip(ends, starts, strict=True)])


def _loose(hole: _Hole) -> str:
    """Return the pattern of a group that finds where a hole ends; :class:`Cells` looks at what is in it."""
    length = hole.end - hole.start
    # Strict patterns of ids, times and numbers take twice as long.
    loose = {_ID % length: f".{{{length}}}", _TIME: ".{19}", _NUMBER: f"[0-9][^}}]*{_ALL}"}
    return f"({loose.get(hole.pattern, hole.pattern + _ALL)})"


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
    matched, row = template.pattern.fullmatch(text), _row_of(text, place)
    made = None if matched is None else template.rows([matched], _SOURCE, [_LINE])[0]
    if made is None or row is None or (*made.trace_ids, *made.span_ids) != (row["trace_id"], row["span_id"]):
        return False
    usual = [orjson.loads(to_json_bytes(row.get(column))) for column in columns]
    # Nested values are texts of JSON already.
    nested = [isinstance(one, (list, dict)) for one in usual]
    cells = [one[0] if type(one) is list else one for one in made.columns]
    return usual == [orjson.loads(cell) if is_json else cell for cell, is_json in zip(cells, nested, strict=True)]
