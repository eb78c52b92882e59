"""Spans read by the template of their form give the rows, the counts and the refusals that parsing them gives."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from otel_lifecycle._table.alike.messages import AlikeSpans
from otel_lifecycle._table.errors import NotATrace
from otel_lifecycle._table.machine import to_json_bytes
from otel_lifecycle._table.requests.from_span import is_request
from otel_lifecycle._table.requests.troubles import note_troubles
from otel_lifecycle._table.row import row_of_span
from otel_lifecycle._table.schema import COLUMNS
from otel_lifecycle._table.sources import shortcut
from otel_lifecycle._table.sources.made_rows import MadeRows
from otel_lifecycle._table.sources.reader import Reader
from otel_lifecycle._table.sources.seen import Seen
from otel_lifecycle._table.sources.spans import Span
from otel_lifecycle._table.sources.tally import ReadingTally
from otel_lifecycle._table.store import STATED
from tests.cli.generator import START_NS, Load, encode, line, request_span_of, simulate, spans_of, write
from tests.support.examples import scaled

BOTH = settings(
    max_examples=scaled(200, quick=40),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
LOAD = Load(requests=40, cancelled=0.2, failed=0.1)
REQUESTS = [request_span_of(one, LOAD) for one in simulate(LOAD)]
ODD = [
    *("0", "5", "007", "1.", "-0", "-0.0", "5.5", "0.25", "1e400", "1E2", "1e-5", "1.0e+2", "9007199254740993", "1e3"),
    *("18446744073709551616", "-1", "1_0", "NaN", "-Infinity", "null", "true", "[]", "{}", "[1,]", "tru", ""),
    *('""', '"x"', '"0"', '"-1"', '"5.5"', '" 1"', '"1_0"', '"1e3"', '"007"', '"9223372036854775808"', '"NaN"'),
    *(r'"\u0041"', r'"\""', r'"\ud800"', '"é"', '"\x7f"', '"\x01"', '"a,b}]"', '"chat"', '"failed"', '"whole"'),
    *('"1770000000357676342"', "1770000000357676342", '"0770000000357676342"', '"9770000000357676342"'),
    *('"00000000000000000000000000000000"', '"0000000000000000"', '"ABCDEF0123456789"', '"AAAAAAAAAAE="'),
]
"""What may stand in place of a value: of the right form, of another one, and no JSON at all."""
INSERTED = [b" ", b",", b"]", b'"spans":[', b'"spans":[]', b"\n", b"{}", b"\xff", b"\\", b'"']
NESTED = {column.name for column in COLUMNS if column.type == "JSON" or column.type.endswith("]")}
SCALAR = re.compile(r'(?<=:)(?:"(?:[^"\\]|\\.)*"|-?\d[0-9.eE+-]*|true|false|null)')


def rows(path: Path, alike: AlikeSpans | None) -> tuple[list[Any], ReadingTally, str, int]:
    """Return all that is read of a file: its rows, the counts, the refusal, and how many rows came ready."""
    tally, found, made, refused = ReadingTally(), list[Any](), 0, ""
    try:
        for item in Reader([str(path)], tally, alike=alike):
            if isinstance(item, MadeRows):
                made += item.size
                ready = rows_of_columns(item)
                found += ready
                assert [item.trace_ids, item.span_ids] == [
                    [row[name] for row in ready] for name in ("trace_id", "span_id")
                ]
            elif isinstance(item, Span) and is_request(item):
                note_troubles(item, tally)
                found.append(orjson.loads(to_json_bytes(row_of_span(item))))
            else:
                found.append(repr(item))
    except NotATrace as error:
        refused = str(error)
    return found, tally, refused, made


def rows_of_columns(made: MadeRows) -> list[dict[str, Any]]:
    """Return rows of plain data: nested cells come as JSON."""
    columns = [one if isinstance(one, list) else [one] * made.size for one in made.columns]
    told = [
        {name: cell for name, cell in zip(STATED, cells, strict=True) if cell is not None}
        for cells in zip(*columns, strict=True)
    ]
    return [{name: orjson.loads(cell) if name in NESTED else cell for name, cell in row.items()} for row in told]


def both(path: Path, content: bytes) -> int:
    """Read a file in both ways, compare all that they give, and return how many rows came ready."""
    path.write_bytes(content)
    usual, alike = rows(path, None), rows(path, AlikeSpans(STATED))
    assert alike[:3] == usual[:3]
    return alike[3]


def message(*spans: str) -> str:
    """Return a message of spans that are text."""
    head, tail = line([]).decode().split('"spans":[')
    return f'{head}"spans":[{",".join(spans)}{tail}'


def text(span: dict[str, Any]) -> str:
    """Return a span as compact JSON."""
    return orjson.dumps(span).decode()


def test_rows_come_ready_once_their_form_is_known(tmp_path: Path) -> None:
    """A run has requests of three outcomes, with an error type or none, and four stages each."""
    path = tmp_path / "run.jsonl"
    with path.open("wb") as out:
        write(Load(requests=400, cancelled=0.2, failed=0.1), out)
    assert both(path, path.read_bytes()) == 400


@BOTH
@given(data=st.data())
def test_odd_values_are_read_alike(tmp_path: Path, data: st.DataObject) -> None:
    """One to three values of a request become something else, before or after its form is known."""
    spans = [text(one) for one in REQUESTS[:6]]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(spans) - 1))
        one = data.draw(st.sampled_from(list(SCALAR.finditer(spans[at]))))
        odd = data.draw(st.sampled_from(ODD))
        spans[at] = spans[at][: one.start()] + odd + spans[at][one.end() :]
    both(tmp_path / "odd.jsonl", (message(*spans[:3]) + message(*spans[3:]) + message(text(REQUESTS[7]))).encode())


@BOTH
@given(data=st.data())
def test_damaged_bytes_are_read_alike(tmp_path: Path, data: st.DataObject) -> None:
    """Bytes are cut out, changed, doubled and put in, in the second of three messages."""
    first, second, third = (line(REQUESTS[at : at + 3]) for at in (0, 3, 6))
    content = bytearray(second)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 2))
        change = data.draw(st.sampled_from(["cut", "flip", "double", "insert"]))
        if change == "cut":
            del content[at : at + data.draw(st.integers(1, 300))]
        elif change == "flip":
            content[at] ^= data.draw(st.integers(1, 255))
        elif change == "double":
            content[at:at] = content[at : at + data.draw(st.integers(1, 3000))]
        else:
            content[at:at] = data.draw(st.sampled_from(INSERTED))
    both(tmp_path / "damaged.jsonl", first + bytes(content) + third)


NAMES = ["arrive", "admit", "input_ready", "first_token", "token", "output", "preempt", "resume", "complete", "cancel"]
NAMES += ["client.disconnected", "inference.violation", "odd"]
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.integers(0, 4),
    ),
    max_size=9,
)


# A stage that ends before it begins, at times that are equal in one request and not in the other.
@example(
    names=[("input_ready", 0), ("input_ready", 0), ("arrive", 0), ("admit", 0)], times=[[0, 0, 1, 1, 0, 0, 0, 0, 0]]
)
@BOTH
@given(names=EVENTS, times=st.lists(st.lists(st.integers(0, 5), min_size=9, max_size=9), min_size=1, max_size=3))
def test_events_in_any_order_are_read_alike(
    tmp_path: Path, names: list[tuple[str, int]], times: list[list[int]]
) -> None:
    """Many events share a time, so the stages have no length, lie within each other, or end before they begin."""
    spans = []
    for number, moments in enumerate([sorted(at for _, at in names), *map(sorted, times), *times]):
        span = {**REQUESTS[number], "startTimeUnixNano": str(START_NS), "endTimeUnixNano": str(START_NS + 5)}
        span["events"] = [
            {"timeUnixNano": str(START_NS + at), "name": name} for (name, _), at in zip(names, moments, strict=False)
        ]
        spans.append(text(span))
    both(tmp_path / "events.jsonl", message(*spans).encode())


KEYS = [item["key"] for item in REQUESTS[0]["attributes"]]
WORDS = st.sampled_from([*KEYS, "inference.stage", "inference.token_offsets", "inference.shape", "x"])


@BOTH
@given(
    keys=st.lists(WORDS, max_size=8),
    resource=st.dictionaries(WORDS, st.one_of(st.text(max_size=3), st.integers(-1, 9), st.floats(0, 2), st.booleans())),
    values=st.lists(st.one_of(st.text(max_size=3), st.integers(0, 9), st.floats(0, 2)), min_size=8, max_size=8),
)
def test_attributes_of_any_kind_are_read_alike(
    tmp_path: Path, keys: list[str], resource: dict[str, Any], values: list[Any]
) -> None:
    """Keys come twice, values have the type of another column, and the resource states what the span states."""
    more = [pair for key, value in zip(keys, values, strict=False) for pair in encode({key: value})]
    spans = [{**one, "attributes": [*one["attributes"], *more]} for one in REQUESTS[:4]]
    document = json.loads(line(spans))
    document["resourceSpans"][0]["resource"]["attributes"] = encode(resource)
    path = tmp_path / "attributes.jsonl"
    both(path, orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE) + line(REQUESTS[4:8]))


TWINS = st.sampled_from(["example.left", "example.here", "example.past"])


# One message of the group has to be parsed, and only then is it seen that two forms differ.
@example(keys=["example.left"] * 6 + ["example.here"] * 3 + ["example.past"] * 3, broken=11)
@BOTH
@given(keys=st.lists(TWINS, min_size=12, max_size=12), broken=st.integers(0, 12))
def test_forms_of_the_same_length_are_told_apart(tmp_path: Path, keys: list[str], broken: int) -> None:
    """Spans that differ in a key of the same length, in four messages that are read together."""
    spans = [
        text({**one, "attributes": one["attributes"] + encode({key: 5})})
        for one, key in zip(REQUESTS, keys, strict=False)
    ]
    if broken < len(spans):
        spans[broken] = re.sub(r'(?<="inference.e2e","value":\{"doubleValue":)[0-9.]+', "1.", spans[broken])
    content = "".join([message(*spans[at : at + 3]) for at in range(0, 12, 3)])
    assert both(tmp_path / "twins.jsonl", content.encode()) >= 9


def test_a_file_is_the_same_in_groups_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of requests, one of them twice, of no JSON and of no message, read one by one and together."""
    lines = [line(REQUESTS[at : at + 3]) for at in range(0, 30, 3)]
    lines[3:3] = [b"no JSON\n", b"{}\n", line(spans_of(next(simulate(LOAD)), LOAD))]
    found = []
    for together in (1, 10_000, 2**19):
        monkeypatch.setattr(shortcut, "TOGETHER", together)
        assert both(tmp_path / "groups.jsonl", b"".join(lines)) == 30
        found.append(rows(tmp_path / "groups.jsonl", AlikeSpans(STATED))[:3])
    assert found[0] == found[1] == found[2]


@given(
    ids=st.lists(st.lists(st.integers(0, 12).map(str), max_size=6), max_size=8),
    capacity=st.integers(1, 20),
)
def test_spans_are_remembered_many_at_a_time_as_one_by_one(ids: list[list[str]], capacity: int) -> None:
    """Also where one comes twice among them, and where the memory is full."""
    together, alone = Seen(capacity), Seen(capacity)
    for some in ids:
        assert together.add_all(some, some) == [alone.add(one, one) for one in some]
    assert together.forgotten == alone.forgotten


def test_a_request_that_breaks_a_rule_stands_among_the_others(tmp_path: Path) -> None:
    """A violation, a lost event and links are read as usual, in their place; the others still come ready."""
    spans = [json.loads(text(one)) for one in REQUESTS[:20]]
    spans[9]["events"].append(
        {"timeUnixNano": spans[9]["endTimeUnixNano"], "name": "inference.violation", "attributes": encode({"a": "b"})}
    )
    spans[9]["attributes"] = [one for one in spans[9]["attributes"] if one["key"] != "inference.violations"]
    spans[9]["attributes"] += encode({"inference.violations": 1})
    spans[12]["droppedEventsCount"] = 2
    spans[14] = {**spans[13]}
    assert both(tmp_path / "some.jsonl", line(spans)) == 17


@pytest.mark.parametrize("spelled", ["spaced", "escaped", "scopes", "empty", "behind", "twice", "many", "long"])
def test_other_spellings_of_a_message_are_read_alike(tmp_path: Path, spelled: str) -> None:
    """JSON with spaces or escapes, several scopes, no span, spans before their scope, a key twice, and large ones."""
    document = json.loads(line(REQUESTS[:5]))
    batch = document["resourceSpans"][0]
    (scope,) = batch["scopeSpans"]
    if spelled == "scopes":
        batch["scopeSpans"] = [{"scope": {"name": "other"}, "spans": spans_of(next(simulate(LOAD)), LOAD)[1:]}, scope]
    elif spelled == "empty":
        batch["scopeSpans"].insert(0, {"scope": {"name": "other"}, "spans": []})
    elif spelled == "many":
        batch["scopeSpans"] += [{"scope": {"name": f"other {number}"}, "spans": []} for number in range(100)]
    elif spelled == "long":
        for span in scope["spans"]:
            span["attributes"] += encode({f"key {number}": f"value {number}" for number in range(1500)})
    elif spelled == "behind":
        batch["scopeSpans"] = [{"spans": scope["spans"], "scope": scope["scope"]}]
    content = orjson.dumps(document).decode()
    content = {
        "spaced": json.dumps(document),
        "escaped": content.replace('"simulated"', '"simul\\u0061ted"'),
        "twice": content.replace('"spans":[', '"spans":[],"spans":[', 1),
    }.get(spelled, content)
    ready = both(tmp_path / "spelled.jsonl", f"{content}\n".encode())
    assert ready == {"scopes": 5, "empty": 5, "escaped": 5}.get(spelled, 0)


def test_a_file_of_foreign_spans_is_soon_parsed_as_a_whole(tmp_path: Path) -> None:
    """Spans without a verdict have no template; after some dozen of them nobody looks for one."""
    foreign = json.loads(orjson.dumps(REQUESTS))
    for span in foreign:
        span["attributes"] = [one for one in span["attributes"] if not one["key"].startswith("inference.")]
    path = tmp_path / "foreign.jsonl"
    again = [{**span, "spanId": f"{number:016x}"} for number, span in enumerate(foreign * 4, 1)]
    assert both(path, line(again[:40]) + line(again[40:])) == 0
