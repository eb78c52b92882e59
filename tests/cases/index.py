"""Which test covers which public failure: writes ``tests/CASES.md``.

A test that covers a case bears its number in its name (``test_c43_...``, ``test_c94_c95_...``).  The case table
(``table.py``) covers those that are the events and times of one request.  ``ALSO`` names the tests that cover a case
under a name of their own.  Run ``python -m tests.cases.index`` after adding one; a test holds the file against it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from tests.cases.table import CASES

TESTS: Final = Path(__file__).parents[1]
FILE: Final = TESTS / "CASES.md"

TITLES: Final[Mapping[int, str]] = {
    1: "a role-only frame was taken for the first token",
    3: "reasoning tokens were not counted as tokens",
    4: "answers of tool calls had no TTFT",
    5: "TTFT was stamped at delivery",
    6: "arrival was stamped after tokenisation",
    7: "times reported after the end became zeros",
    8: "total latency of a call without a stream was its TTFT",
    10: "every chunk of prefill gave a TTFT",
    11: "gaps between chunks were inter-token latency",
    12: "all but one token of the first chunk were lost",
    14: "one-token answers divided by zero",
    16: "TTFT was averaged into the gaps",
    19: "a pause of the engine hid in a mean",
    20: "a completion without tokens was stamped with one",
    21: "embeddings had generation metrics of zero",
    23: "aborted requests were counted nowhere",
    24: "cancels counted as successes, or as failures",
    26: "a cancel in the queue left the gauge up",
    28: "rejected requests were in no metric",
    29: "a client that left ended the request on paper only",
    30: "a token was committed after the abort",
    33: "short failures improved the mean latency",
    35: "a server-side timeout looked like a client's cancel",
    36: "`except Exception` missed cancellations",
    38: "a decorated stream ended when it was returned",
    39: "stuck requests showed nowhere",
    41: "preprocessing before the queue was blamed on the queue",
    43: "preemption reset the times",
    44: "more TTFT samples than requests",
    47: "four choices were counted as four requests",
    48: "tokens of discarded beams were output",
    50: "retries: one request or three",
    52: "both halves of a disaggregated request had a TTFT",
    54: "warm-ups ruined p99",
    55: "a jammed queue looked idle",
    56: "a clock that slewed gave negative spans",
    58: "clocks of two hosts were subtracted",
    59: "negative durations fell into the lowest bucket",
    61: "a consumer's spans became children of the request",
    63: "the first events of a span fell to the limit of 128",
    64: "a batch was too large for one gRPC message",
    65: "attributes set at the end never left",
    66: "unsampled requests were in no metric",
    68: "tail sampling decided before the request ended",
    69: "a full queue dropped spans quietly",
    71: "a fork counted its parent's requests again",
    72: "one scrape saw one worker of four",
    73: "exemplars were missing, or of another trace",
    75: "the processor was registered twice",
    77: "a middleware hid that the client had left",
    78: "the trace backend was down",
    79: "default buckets are for milliseconds",
    82: "request ids became labels",
    84: "no traffic was 0 / 0",
    85: "total failure had no success series",
    86: "the duration of a stream was its latency objective",
    88: "reasoning in a field of its own was not an output",
    89: "the usage figure beside an empty choice was ignored",
    90: "a list of content parts without text was a token",
    91: "frames of several tokens were taken for single ones",
    92: "dialects other than chat were not read, their errors not seen",
    93: "an error code given as text was not a code",
    94: "a stream cut by the network lost or invented tokens",
    95: "events that span lines, or lines without blank ones",
    96: "a group of one exception had two error types",
    97: "one bad value cost its whole file",
    98: "wrapped OTLP JSON was silently empty",
    99: "addresses copied from Jaeger's page did not work",
    100: "a time column of another name gave no latencies",
    101: "token offsets cut by a limit looked complete",
    102: "installing the package changed other programs",
    103: "exporters other than OTLP made configure() raise",
    104: "without a Collector the end took seconds and ten long lines",
    105: "requests in flight were a mean below the truth",
    106: "empty input exited 0, and --html printed nothing",
    107: "a waterfall hid its caller and its last stages",
    108: "headline tiles said no evidence beside proven changes",
    109: "spans inside a stage became its siblings",
    110: "vLLM's attributes had other meanings than vLLM's own",
    111: "names outside the conventions",
    112: "a failed request kept its exception's frames",
    113: "marks by hand without the first boundaries were lost",
    114: "a departed client was a failure",
    115: "a caught exception ended as completed",
    116: "record() differed from live marks",
    117: "exceptions with a meaning were plain failures",
    118: "two sides that end one request were a violation",
    119: "a request opened late lost its parent",
}
"""Every case, and what was wrong, in a few words."""

ALSO: Final[Mapping[int, tuple[str, ...]]] = {
    39: ("stack/test_files.py::test_rules",),
    44: ("core/test_properties.py::test_one_ttft_sample_a_request_at_most",),
    55: (
        "stack/test_alerts.py::test_a_jammed_queue_fires_while_no_request_has_ended",
        "stack/test_files.py::test_rules",
    ),
    68: (
        "stack/test_files.py::test_the_sampler_waits_longer_than_a_request_may_take",
        "stack/test_sampling.py::test_the_wait_must_be_longer_than_the_request",
    ),
    72: ("stack/test_metrics.py::test_every_process_has_an_instance_of_its_own",),
    78: ("stack/test_faults.py::test_the_cumulative_metrics_are_right_afterwards",),
    84: ("stack/test_files.py::test_rules",),
    85: (
        "stack/test_alerts.py::test_a_failing_service_fires_though_it_has_no_success_series",
        "stack/test_files.py::test_rules",
    ),
    86: ("stack/test_files.py::test_rules",),
}
"""Tests that cover a case without its number in their name."""


@cache
def functions() -> dict[str, list[str]]:
    """Return the test functions of every file under tests/, by its path there."""
    return {
        path.relative_to(TESTS).as_posix(): [
            node.name
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_")
        ]
        for path in sorted(TESTS.rglob("test_*.py"))
    }


def numbers_of(name: str) -> list[int]:
    """Return the cases that a test's name says it covers."""
    prefix = re.match(r"test((?:_c\d{2,3})+)_", name)
    return [] if prefix is None else [int(number) for number in re.findall(r"_c(\d+)", prefix[1])]


def covered() -> dict[int, list[str]]:
    """Return for each case the ``file::function`` of its tests."""
    found: dict[int, list[str]] = {number: [] for number in TITLES}
    for file, names in functions().items():
        for name in names:
            for number in numbers_of(name):
                found.setdefault(number, []).append(f"{file}::{name}")
    for number, tests in ALSO.items():
        found[number] += tests
    return found


def in_the_table() -> set[int]:
    """Return the cases that the case table covers."""
    return {int(case.id[1:3]) for case in CASES}


def page() -> str:
    """Return the text of ``tests/CASES.md``."""
    table = in_the_table()
    lines = [
        "<!-- Made by `python -m tests.cases.index` from the names of the tests. -->",
        "# Public failures",
        "",
        "Each case is a public report about timing, tracing or metrics of an inference server, re-told as a small",
        "input with the outcome worked out by hand. *table*: the case is a row of `cases/table.py`, which runs",
        "through `replay_request_events` (`cases/test_replay.py`), through the request API with a real SDK",
        "(`cases/test_live.py`), and as a span of another library where its events can tell the case",
        "(`cases/test_foreign.py`).",
        "",
        "| case | what was wrong | tests |",
        "|---|---|---|",
    ]
    for number, tests in sorted(covered().items()):
        cells = (["table"] if number in table else []) + [f"`{test}`" for test in tests]
        lines.append(f"| C{number:02} | {TITLES[number]} | {', '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
