"""A template: the text of a span with holes for its values, and the columns of the table that these fill.

A file of a million requests has a handful of forms of a span: the same keys in the same order.  A template reads the
spans of one form, many at a time; :mod:`otel_lifecycle._table.alike.learning` makes it of one of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, compress, pairwise, repeat
from operator import eq, le, methodcaller, sub
from typing import Any, Final

import orjson

from otel_lifecycle._table.sources.made_rows import MadeRows

_NANO: Final = 1e-9
_HEX: Final = re.compile("[0-9a-f]*")
_EARLIEST: Final = 10**18
_LATEST: Final = 9 * 10**18
"""Epoch nanoseconds of 19 digits; a column holds no later ones."""

AT_ONCE: Final = 16
"""Spans that are compared with their template together."""
_TELLING: Final = re.compile(r'"(?!key")[A-Za-z]+":("[^"\\]*"|[a-z0-9.+-]+)')
"""A value that is no hole: it tells forms of the same keys from each other."""
_TEXT: Final = methodcaller("group")
_HOLES: Final = methodcaller("groups")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """How the holes of a form fill columns.

    ``numbers`` are the holes with numbers: the times of the events in their order, the end and the start of the span,
    and the values, which ``limits`` bound.  ``preempts`` are the events that no other may follow at the same time, for
    that would change the order of the stages.  ``offsets`` are the numbers that are starts and ends of stages.  All
    these make parts, after one another: the holes, the numbers, the offsets, the source, the line and ``constants``;
    then each of ``joined`` is a text of several parts.  ``columns`` picks from the parts, and ``trace_id`` and
    ``span_id`` from the holes, of which ``ids`` are all that hold ids.  ``texts`` are the holes whose texts are parts
    that any column needs.
    """

    numbers: tuple[int, ...]
    limits: tuple[float, ...]
    events: int
    arrival: int
    preempts: tuple[int, ...]
    offsets: tuple[int, ...]
    constants: tuple[Any, ...]
    joined: tuple[tuple[int, ...], ...]
    trace_id: int
    span_id: int
    ids: tuple[int, ...]
    columns: tuple[int, ...]
    texts: frozenset[int]

    def rows(self, texts: Sequence[list[str]], source: str, lines: list[int]) -> MadeRows | None:
        """Return rows, of what is in each hole; None where a value is beyond the bounds.

        What is in holes that are not among ``texts`` may be joined by commas.  Raises ValueError or TypeError where a
        value is no number of JSON.
        """
        numbers = self._numbers(texts, len(lines))
        if numbers is None:
            return None
        arrivals = numbers[self.arrival]
        offsets = [_as_texts(map(sub, numbers[at], arrivals)) for at in self.offsets]
        parts = [*texts, *numbers, *offsets, source, lines, *self.constants]
        parts += [_joined([parts[at] for at in one], len(arrivals)) for one in self.joined]
        return MadeRows(texts[self.trace_id], texts[self.span_id], [parts[at] for at in self.columns])

    def _numbers(self, texts: Sequence[list[str]], size: int) -> list[list[Any]] | None:
        told = [",".join(texts[at]) for at in self.numbers]
        ids = [texts[at] for at in self.ids]
        # Holes of ids are found by their length alone.
        if not _HEX.fullmatch("".join(chain.from_iterable(ids))) or any("0" * len(one[0]) in one for one in ids):
            return None
        numbers = orjson.loads(f"[[{'],['.join(told)}]]")
        # And those of numbers by what comes after: one may hold several.
        whole = list(map(len, numbers)) == [size] * len(told)
        return numbers if whole and self._within(numbers) else None

    def _within(self, numbers: Sequence[Sequence[float]]) -> bool:
        end, values = self.events, numbers[self.events + 2 :]
        times = numbers[: self.events + 2]
        ordered = [*pairwise(times[: end + 1]), (times[end + 1], times[end])]
        return (
            all(all(map(le, one, other)) for one, other in ordered)
            # Whole numbers of 19 characters have as many digits.
            and {*map(type, chain.from_iterable(times))} == {int}
            and min(map(min, (times[0], times[end + 1]))) >= _EARLIEST
            and max(times[end]) < _LATEST
            and all(max(some) <= limit for some, limit in zip(values, self.limits, strict=True))
            and not any(any(map(eq, numbers[at], numbers[at + 1])) for at in self.preempts)
        )


def _joined(pieces: Iterable[Any], size: int) -> list[str]:
    return list(map("".join, zip(*[one if type(one) is list else repeat(one, size) for one in pieces], strict=True)))


def _as_texts(times: Iterable[int]) -> list[str]:
    # All in one go: orjson writes ten floats in the time that Python takes for one.
    return orjson.dumps([time * _NANO for time in times]).decode()[1:-1].split(",")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Template:
    """Reads the spans of one form.

    ``literals`` stand before, between and after the holes, and ``holes`` are the patterns of these.  ``cells``: None
    for a span that is no request, of which nothing is of interest but ``counted``, its kind in the tally.  ``pattern``
    finds where a span ends and what is in its holes; where it is not ``exact``, it goes by the lengths of literals,
    and :meth:`rows` compares these.
    """

    literals: tuple[str, ...]
    holes: tuple[str, ...]
    cells: Cells | None = None
    counted: str | None = None
    exact: bool = False
    pattern: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        told = [re.escape(one) if self.exact else _lengths(one) for one in self.literals]
        pattern = "".join([one + hole for one, hole in zip(told, (*self.holes, ""), strict=True)])
        object.__setattr__(self, "pattern", re.compile(pattern, re.DOTALL))

    def rows(
        self, matched: Sequence[re.Match[str]], source: str, lines: list[int]
    ) -> tuple[MadeRows | None, Sequence[bool]]:
        """Return the rows of the spans that the pattern matched, and of each whether it has one.

        A span with a value beyond the bounds has none.  Raises OtherForm where one is not of this form, ValueError or
        TypeError where a value is not of JSON.
        """
        assert self.cells is not None  # noqa: S101 - of a request
        rows = self.cells.rows(self._texts(matched, self.cells.texts), source, lines)
        if rows is not None:
            return rows, [True] * len(matched)
        sound = [self.cells.rows([[one] for one in found.groups()], source, lines[:1]) is not None for found in matched]
        chosen = list(compress(matched, sound))
        return (self.rows(chosen, source, list(compress(lines, sound)))[0] if chosen else None), sound

    def _texts(self, matched: Sequence[re.Match[str]], kept: Collection[int]) -> list[list[str]]:
        """Return what is in each hole, of those that are not kept with commas between several."""
        first, *rest = self.literals
        rest[-1] += first
        step = len(rest)
        joined = [at for at in range(step) if at not in kept]
        between = [piece for literal in rest for piece in ("", literal)] * AT_ONCE
        texts: list[list[str]] = [[] for _ in rest]
        # A few spans at a time, for the processor finds them in its cache.
        for begin in range(0, len(matched), AT_ONCE):
            those = matched[begin : begin + AT_ONCE]
            holes = list(chain.from_iterable(map(_HOLES, those)))
            pieces = between[: 2 * len(holes)]
            pieces[::2] = holes
            # Whole texts: a pattern would compare them character by character.
            if "".join([first, *pieces]) != "".join([*map(_TEXT, those), first]):
                raise OtherForm(self)
            for at in kept:
                texts[at] += holes[at::step]
            for at in joined:
                texts[at].append(",".join(holes[at::step]))
        return texts

    def strict(self) -> Template:
        """Return a template whose pattern no span of another form matches; that takes longer."""
        return replace(self, exact=True)


class OtherForm(Exception):
    """A template that goes by lengths took a span of another form for one of its own."""

    def __init__(self, template: Template) -> None:
        super().__init__()
        self.template = template


def _lengths(literal: str) -> str:
    """Return a pattern of the length of a literal, and of what tells it from others of that length."""
    # The first character is no part of a value, so that none is tried at more than one length.
    pattern, at = re.escape(literal[:1]), len(literal[:1])
    for value in _TELLING.finditer(literal, at):
        pattern += f".{{{value.start(1) - at}}}{re.escape(value[1])}"
        at = value.end()
    return f"{pattern}.{{{len(literal) - at}}}"
