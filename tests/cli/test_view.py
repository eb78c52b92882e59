"""One request, taken apart."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from markupsafe import escape
from rich.cells import cell_len
from rich.console import Console

from otel_lifecycle import request
from otel_lifecycle._table.sources.tally import ReadingTally
from otel_lifecycle._table.text import shorten, text
from otel_lifecycle._trace.anatomy import anatomy
from otel_lifecycle._trace.find import find
from tests.cli.forms import FORMS
from tests.cli.generator import Load, write
from tests.cli.live import ARRIVED, serve, server
from tests.cli.running import Ran

TOKENS = (1.1, 1.2, 1.3, 2.5, 2.6, 2.7, 2.72, 2.75)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """The trace id of a request with a stall of 1.1 s in a gap of 1.2 s, in a file beside another request."""
    with server(token_times=True) as process:
        serve(process, (0.2, 0.3, 1.0), TOKENS, ("complete", 2.8), request_id="r1", input_tokens=7)
        serve(process, (0.2,), (), ("cancel", 0.5), start=1.0, request_id="r2")
        (tmp_path / "run.json").write_bytes(process.json_line())
        context = process.spans[4].context
        assert context is not None
        return f"{context.trace_id:032x}"


@pytest.mark.parametrize("name", ["trace", "beginning", "request"])
def test_a_request_is_found_by_any_of_its_names(trace: str, cli: Callable[..., Ran], name: str) -> None:
    """Its trace id, the beginning of that, or its own id."""
    told = cli("view", {"trace": trace, "beginning": trace[:8], "request": "r1"}[name], "run.json", "--json").json
    assert (told["trace_id"], told["outcome"], told["attributes"]["inference.request.id"]) == (trace, "completed", "r1")


def test_waterfall_tokens_stalls_and_attribution(trace: str, cli: Callable[..., Ran]) -> None:
    """Each with its times, in seconds after arrival."""
    told = cli("view", trace, "run.json", "--json").json
    bars = [(bar["name"], round(bar["start"], 6), round(bar["end"], 6), bar["depth"]) for bar in told["waterfall"]]
    assert bars == [
        ("chat smollm2", 0, 2.8, 0),
        ("queue", 0, 0.2, 1),
        ("preprocessing", 0.2, 0.3, 1),
        ("prefill", 0.3, 1.0, 1),
        ("decode", 1.0, 2.8, 1),
    ]
    assert told["tokens"] == pytest.approx([1.0, *TOKENS])
    assert [(one["after_token"], one["length"]) for one in told["stalls"]] == [(4, pytest.approx(1.1))]
    assert told["shares"] == pytest.approx(
        {"queue": 0.2 / 2.8, "preprocessing": 0.1 / 2.8, "prefill": 0.7 / 2.8, "decode": 1.8 / 2.8}
    )
    assert (told["bottleneck"], told["legal"]) == ("decode", True)


def test_the_terminal_shows_the_same(trace: str, cli: Callable[..., Ran]) -> None:
    """A bar a span, the attribution, the stall."""
    out = cli("view", trace, "run.json").out
    assert out.splitlines()[0] == f"chat smollm2  completed  trace {trace}"
    assert "1.80 s" in next(line for line in out.splitlines() if line.strip().startswith("decode") and "█" in line)
    assert "bottleneck: decode" in out
    assert "9 tokens with a time" in out


def test_an_interruption_lies_within_its_stage(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """A preempted span is a child of the stage it interrupted."""
    with server() as process:
        handle = request(tracer_provider=process.provider, arrived_at_ns=ARRIVED)
        times = iter(ARRIVED + number * 10**8 for number in range(1, 20))
        with handle:
            for mark in (handle.admit, handle.input_ready, handle.first_token, handle.preempt, handle.resume):
                mark(at_ns=next(times))
            handle.complete(at_ns=next(times))
        (tmp_path / "run.json").write_bytes(process.json_line())
    told = cli("view", "run.json", "--json").json
    assert [(bar["name"], bar["depth"]) for bar in told["waterfall"]][-2:] == [("decode", 1), ("preempted", 2)]


def test_spans_of_other_services_are_part_of_the_picture(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """A client's span around the request, and a tool's within a stage."""
    with server() as process:
        tracer = process.provider.get_tracer("client")
        with tracer.start_as_current_span("GET /chat"):
            handle = request(tracer_provider=process.provider)
            with handle:
                with handle.stage("queue"):
                    pass
                with handle.stage("preprocessing"), tracer.start_as_current_span("tokenise"):
                    pass
                handle.first_token()
        (tmp_path / "run.pb").write_bytes(FORMS["proto_messages"](process.proto()))
    names = [bar["name"] for bar in cli("view", "run.pb", "--json").json["waterfall"]]
    assert sorted(names) == ["GET /chat", "chat", "decode", "prefill", "preprocessing", "queue", "tokenise"]
    assert names[:2] == ["GET /chat", "chat"]


def test_stages_are_drawn_from_durations_where_their_spans_are_elsewhere(
    cli: Callable[..., Ran], tmp_path: Path
) -> None:
    """A sampled trace may have lost its children."""
    with (tmp_path / "run.json").open("wb") as out:
        write(Load(requests=1, cancelled=0, failed=0), out)
    message = json.loads((tmp_path / "run.json").read_text())
    del message["resourceSpans"][0]["scopeSpans"][0]["spans"][1:]
    (tmp_path / "run.json").write_text(json.dumps(message))
    told = cli("view", "run.json", "--json").json
    assert [bar["name"] for bar in told["waterfall"]] == ["chat smollm2", "queue", "preprocessing", "prefill", "decode"]
    assert told["waterfall"][-1]["end"] == pytest.approx(told["seconds"]["e2e"])
    assert (told["tokens"], told["stalls"]) == ([], [])


NAMES = ["[/bold] [red]x", "$\\frac{$", "$1 AND b=$2", "\x1b[31mred\u202e", "two\nlines", "日本語" * 20]


def named(name: str, seed: int = 1) -> Any:
    """Return the trace of one request, all of whose names are this one."""
    written = io.BytesIO()
    attributes = (("inference.request.id", name), ("gen_ai.request.model", name))
    write(Load(requests=1, seed=seed, attributes=attributes), written)
    message = json.loads(written.getvalue())
    for span in message["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        span["name"] = name
    return message


@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_shown_as_it_is(cli: Callable[..., Ran], tmp_path: Path, name: str) -> None:
    """It is neither markup nor a formula, and does not steer the terminal; on a page of text and drawings."""
    (tmp_path / "run.json").write_text(json.dumps(named(name)))
    assert cli("view", "run.json").out.startswith(f"{text(name)}  completed  trace ")
    assert cli("view", "run.json", "--html", "view.html").code == 0
    drawn = "".join(re.findall("<svg.*?</svg>", (tmp_path / "view.html").read_text(), re.DOTALL))
    assert f">{escape(shorten(text(name), 34))}<tspan" in drawn


def test_a_report_takes_any_name(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """Its page is written, whatever requests and models are called."""
    (tmp_path / "run.json").write_text("".join(json.dumps(named(name, seed)) + "\n" for seed, name in enumerate(NAMES)))
    assert cli("report", "run.json", "--html", "report.html").code == 0
    page = (tmp_path / "report.html").read_text()
    assert all(escape(text(name)) in page for name in NAMES)


@pytest.mark.parametrize("width", [80, 100, 200])
def test_the_waterfall_fits_the_terminal(trace: str, tmp_path: Path, width: int) -> None:
    """A bar a line, whatever the names are made of."""
    from otel_lifecycle._cli.render.trace import sketch

    found = anatomy(find(trace, [str(tmp_path / "run.json")], "default", ReadingTally(), None))
    wide = replace(found, bars=(*found.bars, replace(found.bars[1], name="日本語" * 20, depth=9)))
    out = io.StringIO()
    sketch(wide, Console(file=out, width=width))
    bars = [line for line in out.getvalue().splitlines() if "█" in line]
    assert len(bars) == 6
    assert len({cell_len(line) for line in bars}) == 1
    assert all(cell_len(line) <= min(width, 101) for line in bars)


def test_a_pipe_is_looked_through_twice(
    trace: str, tmp_path: Path, cli: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By any name, and without one where it holds one request."""
    content = (tmp_path / "run.json").read_bytes()
    with (tmp_path / "one.json").open("wb") as out:
        write(Load(requests=1), out)
    one = (tmp_path / "one.json").read_bytes()
    for arguments, given in (((trace, "-"), content), (("r1", "-"), content), (("-",), one)):

        class Pipe:
            buffer = io.BytesIO(given)

        monkeypatch.setattr(sys, "stdin", Pipe)
        told = cli("view", *arguments, "--json").json
        assert len(told["waterfall"]) == 5


def shifted(tmp_path: Path, name: str, start: float, end: float) -> None:
    """Move a span of a request by some seconds at its start and its end; ``parent``: one put around it."""
    with (tmp_path / "run.json").open("wb") as out:
        write(Load(requests=1, cancelled=0, failed=0), out)
    message = json.loads((tmp_path / "run.json").read_text())
    spans = message["resourceSpans"][0]["scopeSpans"][0]["spans"]
    moved = next((span for span in spans if span["name"] == name), None)
    if moved is None:
        moved = {**spans[0], "spanId": "ab" * 8, "name": name, "attributes": [], "events": []}
        spans.append(moved)
        if name == "gateway":
            spans[0]["parentSpanId"] = moved["spanId"]
        else:
            moved["parentSpanId"] = spans[0]["spanId"]
    moved["startTimeUnixNano"] = str(int(moved["startTimeUnixNano"]) + round(start * 1e9))
    moved["endTimeUnixNano"] = str(int(moved["endTimeUnixNano"]) + round(end * 1e9))
    (tmp_path / "run.json").write_text(json.dumps(message))


@pytest.mark.parametrize(
    ("name", "start", "end", "warned"),
    [
        ("gateway", -2.0, 2.0, False),
        ("background", 0.1, 30.0, False),
        ("background", -2.0, 0.0, True),
        ("decode", 0.0, 2.0, True),
        ("queue", -2.0, 0.0, True),
    ],
)
def test_clocks_that_disagree_are_told_from_spans_that_are_wide(
    cli: Callable[..., Ran], tmp_path: Path, name: str, start: float, end: float, warned: bool
) -> None:
    """A gateway is wider than the request, and a task may go on after it; nothing begins before what began it."""
    shifted(tmp_path, name, start, end)
    assert cli("view", "run.json", "--html", "page.html").code == 0
    assert ("the clocks of two hosts disagree" in (tmp_path / "page.html").read_text()) == warned


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("ffffffffff", "run.json"), "no trace, span or request 'ffffffffff' in run.json"),
        (("run.json",), "2 requests in it; name one: otel-lifecycle view "),
        (("ffffffffff",), "ffffffffff is not a file; to look for a trace of that name, say where"),
    ],
)
def test_what_is_not_there_is_code_2(
    trace: str, cli: Callable[..., Ran], arguments: tuple[str, ...], reason: str
) -> None:
    """With what to do instead."""
    ran = cli("view", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert reason in ran.err
