"""A Celery worker with a broker in memory: the page's own task, its caller, its retries."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import celery.contrib.testing.worker
import pytest

from tests.integration.support_http import PARENT_ID, TRACE_ID, TRACEPARENT, wait_for
from tests.servers.ends_page import PAGE
from tests.servers.support import COMPLETED, EngineError, ending_of, engine, request_spans
from tests.servers.test_docs import page_telemetry, run_page
from tests.support.telemetry import Telemetry

__all__ = ["page_telemetry"]

ATTEMPT = "inference.request.attempt"


def serve(prompts: list[str], engine_of: Any) -> list[Any]:
    """Run the task of the page for each prompt; returns the results, or what was raised."""
    task = run_page("celery.md", engine_of)["generate"]
    results: list[Any] = []
    worker = celery.contrib.testing.worker.start_worker(
        task.app, pool="solo", perform_ping_check=False, loglevel="CRITICAL", shutdown_timeout=20
    )
    with worker:
        for prompt in prompts:
            promise = task.apply_async([prompt], headers={"traceparent": TRACEPARENT})
            results.append(promise.get(timeout=20, propagate=False))
    return results


@pytest.mark.process
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_tasks_with_a_caller_an_error_and_a_retry(page_telemetry: Telemetry) -> None:
    """Completed; failed before and after its first token; and an attempt that is retried, which counts as neither."""
    broken_once = iter([True])

    def engine_of(prompt: str) -> Iterator[str]:
        if prompt == "retry" and next(broken_once, False):
            yield "t0 "
            # Out of the stream: the attempt is given up, and does not count as failed by it.
            raise ConnectionError
        yield from engine("good" if prompt == "retry" else prompt)

    first, failed, cut, again = serve(["good", "broken", "cut", "retry"], engine_of)
    assert (first, type(failed), type(cut), again) == ("t0 t1 t2 ", EngineError, EngineError, "t0 t1 t2 ")
    wait_for(lambda: len(request_spans(page_telemetry)) == 5)
    spans = request_spans(page_telemetry)
    assert [(ending_of(span)["inference.outcome"], span["attributes"][ATTEMPT]) for span in spans] == [
        ("completed", 1),
        ("failed", 1),
        ("failed", 1),
        ("cancelled", 1),
        ("completed", 2),
    ]
    assert ending_of(spans[0]) == COMPLETED
    assert {(span["trace_id"], span["parent_id"]) for span in spans} == {(TRACE_ID, PARENT_ID)}


WORKER = """
import time

import otel_lifecycle
from celery.signals import worker_process_init


@worker_process_init.connect
def configure(**_):
    otel_lifecycle.configure(service_name="tiny-llm")


def engine(prompt):
    while True:
        yield "t "
        time.sleep(0.05)
"""


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_soft_time_limit_in_a_real_worker(tmp_path: Path) -> None:
    """The default pool: a process of its own, which Celery interrupts at the limit; that is the deadline."""
    folder = tmp_path / "queue"
    folder.mkdir()
    broker = f"app.conf.update(broker_url='filesystem://', result_backend='file://{folder}', broker_transport_options="
    broker += f"{{'data_folder_in': '{folder}', 'data_folder_out': '{folder}'}})\n"
    (source,) = re.findall(r"```python\n(.*?)```", (PAGE.parent / "celery.md").read_text(encoding="utf-8"), re.DOTALL)
    source = source.replace("soft_time_limit=60", "soft_time_limit=1")
    (tmp_path / "page.py").write_text(f"{WORKER}\n{source}\n{broker}", encoding="utf-8")
    call = f"import page; r = page.generate.apply_async(['x'], headers={{'traceparent': '{TRACEPARENT}'}})\n"
    call += "try: r.get(timeout=60)\nexcept Exception as error: print(type(error).__name__)"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LIFECYCLE_FILE": str(tmp_path / "run-{pid}.jsonl"),
    }
    command = [sys.executable, "-m", "celery", "-A", "page", "worker", "--concurrency=1", "--loglevel=ERROR"]
    worker = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    try:
        asked = [sys.executable, "-c", call]
        done = subprocess.run(asked, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
    finally:
        worker.terminate()
        worker.wait(30)
    assert done.stdout.strip() == "SoftTimeLimitExceeded"
    spans = [span for path in tmp_path.glob("run-*.jsonl*") for span in written(path)]
    (span,) = [span for span in spans if "inference.outcome" in span["attributes"]]
    names = ("inference.outcome", "inference.end.reason", "inference.failure.stage")
    assert [span["attributes"].get(name) for name in names] == ["timed_out", "deadline", "decode"]
    assert (span["traceId"], span["parentSpanId"]) == (TRACE_ID, PARENT_ID)


def written(path: Path) -> Iterator[dict[str, Any]]:
    """The spans of a file of OTLP JSON lines, their attributes as plain values."""
    for line in path.read_text(encoding="utf-8").splitlines():
        for resource in json.loads(line).get("resourceSpans", ()):
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    plain = {item["key"]: next(iter(item["value"].values())) for item in span.get("attributes", ())}
                    yield {**span, "attributes": plain}
