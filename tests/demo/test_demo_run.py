"""``make demo``, run as a user runs it, with a Collector listening."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples import load
from otel_lifecycle import semconv

if TYPE_CHECKING:
    from tests.support.otlp_receiver import HttpReceiver

pytestmark = pytest.mark.demo

ROOT = Path(__file__).parents[2]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the demo without a terminal, as CI does."""
    command = [sys.executable, "-m", "examples.demo", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.fixture(scope="module")
def labels() -> list[str]:
    """The requests of the demo in the order they are printed."""
    return [f"{row} {ask.label}" for act in load.acts() for row, ask in enumerate(act.asks, start=1)]


def test_the_demo_prints_what_it_must_and_sends_the_same(
    model_path: Path, otlp_http: HttpReceiver, labels: list[str]
) -> None:
    """A line per request, the summary with every outcome and bottleneck, and the same requests over the wire."""
    done = run(OTEL_EXPORTER_OTLP_ENDPOINT=otlp_http.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 100

    outcome = re.compile(r"^(?P<label>.{19}) \S+ +[░▒▓█]* [\d.]+ s +(?P<outcome>completed|cancelled|timed_out|failed) ")
    found = [match for line in lines if (match := outcome.match(line))]
    assert [match["label"].strip() for match in found] == labels
    unlucky = {"1 client leaves": "cancelled", "2 deadline of 2 s": "timed_out"}
    unlucky |= {"3 input too long": "failed", "4 broken grammar": "failed"}
    assert [match["outcome"] for match in found] == [unlucky.get(label, "completed") for label in labels]

    text = " ".join(done.stdout.split())
    assert "The workload: 14 of 18 completed, success rate 78%" in text
    assert re.search(r"completed 14 queue \d+ queue \d+ cancelled 1 preprocessing 0 preprocessing 1", text)
    assert re.search(r"timed_out 1 prefill \d+ prefill 1 failed 2 decode \d+ decode \d incomplete 0 mixed \d", text)
    assert "E2E, s 18 " in text
    assert "E2E of the completed, s 14 " in text
    assert "No violation in 18 requests" in text
    assert "Held against llama.cpp's own timings, median of 14 requests: prefill +" in text
    assert f"The same run went to {otlp_http.endpoint}." in text

    sent = [span["attributes"] for span in otlp_http.spans() if semconv.OUTCOME in span["attributes"]]
    assert Counter(span[semconv.OUTCOME] for span in sent) == Counter(match["outcome"] for match in found)
    # The engine is this process's alone, so every cause is known; one that timed out in the queue has no wait.
    waited = [span for span in sent if semconv.QUEUE_WAIT in span]
    assert len(waited) >= len(sent) - 1
    assert all(semconv.QUEUE_IDLE in span and semconv.INTERFERENCE_COMPLETE not in span for span in waited)
    where = r"(Calm|Rush|Trouble) \d \(.+\)"
    assert re.fullmatch(rf"The worst pair: {where} (waited|stalled) for [\d.]+ s beside {where}\.", lines[-1])
    assert "inference.time_to_first_token" in {point["metric"] for point in otlp_http.points()}


def test_a_model_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    """No traceback, and the exit code says so."""
    done = run("--model", str(tmp_path / "none.gguf"))
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines() == [f"no file {tmp_path / 'none.gguf'}"]
