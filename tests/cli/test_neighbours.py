"""The requests beside one: their stages below its own, and what each of its stalls fell beside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

from tests.cli.live import otlp_json, serve, server
from tests.cli.running import Ran

# Tokens every 100 ms with three gaps of a second; the boundaries before them are at 0.1, 0.2 and 1.0.
TOKENS = [*(1.0 + 0.1 * number for number in range(1, 9)), 2.8, 2.9, 3.9, 4.0, 5.0, 5.1]


def write_run(folder: Path) -> None:
    """Write a victim, the neighbour whose prefill fills its first gap, one in decode, and two that cannot matter."""
    with server(token_times=True) as process:
        serve(process, (0.0, 0.0, 1.0), (), ("complete", 1.05), start=1.8, request_id="long prompt")
        serve(process, (0.0, 0.0, 0.1), (), ("complete", 3.0), start=2.95, request_id="decodes")
        serve(process, (0.0, 0.0, 1.0), (), ("complete", 1.1), start=1.8, request_id="other engine", engine="b")
        serve(process, (0.0, 0.0, 0.1), (), ("complete", 0.2), start=9.0, request_id="later")
        serve(process, (0.1, 0.2, 1.0), TOKENS, ("complete", 5.2), request_id="victim")
        (folder / "run.json").write_bytes(process.json_line())


def test_stalls_have_a_cause_and_neighbours_their_stages(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """The prefill beside the first stall is named; the others are unexplained, since all it blames is there."""
    write_run(tmp_path)
    told = cli("view", "victim", "run.json", "--json").json
    assert [(one["after_token"], one["cause"], one["beside"]) for one in told["stalls"]] == [
        (9, "prefill", "long prompt"),
        (11, "unexplained", None),
        (13, "unexplained", None),
    ]
    stages = {
        one["name"]: [(part["stage"], round(part["start"], 3), round(part["end"], 3)) for part in one["stages"]]
        for one in told["neighbours"]
    }
    assert stages == {
        "long prompt": [("prefill", 1.8, 2.8), ("decode", 2.8, 2.85)],
        "decodes": [("prefill", 2.95, 3.05), ("decode", 3.05, 5.2)],
    }
    blamed = [(one["name"], one["queue"], one["stall"]) for one in told["neighbours"]]
    assert blamed == [("long prompt", None, pytest.approx(0.9)), ("decodes", None, None)]


def test_terminal_and_page_show_the_same(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """A line for each neighbour on the scale of the bars, a table of stalls with causes, and a strip on the page."""
    write_run(tmp_path)
    out = cli("view", "victim", "run.json", "--html", "page.html").out + cli("view", "victim", "run.json").out
    line = next(line for line in out.splitlines() if line.startswith("· long prompt"))
    assert ("▄" in line, line.endswith("900 ms")) == (True, True)
    assert "beside the prefill of long prompt" in out
    page = (tmp_path / "page.html").read_text()
    for text in ("Neighbours", "this request", "stalled 900 ms beside it", "beside the prefill of long prompt"):
        assert text in page


def test_cause_is_absent_where_the_source_lacks_the_culprit(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """One request alone: that nobody is in the file does not say that nobody was there."""
    with server(token_times=True) as process:
        serve(process, (0.0, 0.0, 1.0), (), ("complete", 1.05), start=1.8, request_id="long prompt")
        made = len(process.spans)
        serve(process, (0.1, 0.2, 1.0), TOKENS, ("complete", 5.2), request_id="victim")
        (tmp_path / "run.json").write_bytes(otlp_json(MessageToDict(encode_spans(process.spans[made:]))))
    told = cli("view", "run.json", "--json").json
    assert [one["cause"] for one in told["stalls"]] == [None, None, None]
    assert told["neighbours"] == []
