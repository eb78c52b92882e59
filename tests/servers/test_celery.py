"""A Celery worker with a broker in memory: the page's own task, its caller, its retries."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    # The second block is for the processes of a pool; here the worker is a thread of this one.
    task = run_page("celery.md", engine_of, blocks=1)["generate"]
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


ENGINE = """
import pathlib
import time


def engine(prompt):
    while True:
        yield "t "
        pathlib.Path("begun").touch()
        time.sleep(0.05)
"""


@contextmanager
def real_worker(folder: Path, limit: str = "60") -> Iterator[Callable[[str], str]]:
    """Start the page's own worker with its default pool; yields a way to run a caller's code beside it.

    Each process of it writes `run-{pid}.jsonl`.
    """
    queue = folder / "queue"
    queue.mkdir()
    broker = f"app.conf.update(broker_url='filesystem://', result_backend='file://{queue}', broker_transport_options="
    broker += f"{{'data_folder_in': '{queue}', 'data_folder_out': '{queue}', 'control_folder': '{queue}'}})\n"
    blocks = re.findall(r"```python\n(.*?)```", (PAGE.parent / "celery.md").read_text(encoding="utf-8"), re.DOTALL)
    source = "\n".join(blocks).replace("soft_time_limit=60", f"soft_time_limit={limit}")
    (folder / "page.py").write_text(f"{ENGINE}\n{source}\n{broker}", encoding="utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]),
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LIFECYCLE_FILE": str(folder / "run-{pid}.jsonl"),
    }

    def call(code: str) -> str:
        asked = [sys.executable, "-c", CALLER + code]
        done = subprocess.run(asked, cwd=folder, env=environment, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    command = [sys.executable, "-m", "celery", "-A", "page", "worker", "--concurrency=1", "--loglevel=ERROR"]
    worker = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    try:
        yield call
    finally:
        worker.terminate()
        worker.wait(30)


CALLER = f"""
import pathlib, time
import page

result = page.generate.apply_async(["x"], headers={{"traceparent": "{TRACEPARENT}"}})


def end():
    try:
        result.get(timeout=60)
    except Exception as error:
        print(type(error).__name__)

"""


def request_written(folder: Path) -> dict[str, Any]:
    """The only request span of the files in a folder."""
    spans = [span for path in folder.glob("run-*.jsonl*") for span in written(path)]
    (span,) = [span for span in spans if "inference.outcome" in span["attributes"]]
    return span


ENDING = ("inference.outcome", "inference.end.reason", "inference.failure.stage")


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_soft_time_limit_in_a_real_worker(tmp_path: Path) -> None:
    """The default pool: a process of its own, which Celery interrupts at the limit; that is the deadline."""
    with real_worker(tmp_path, limit="1") as call:
        assert call("end()") == "SoftTimeLimitExceeded"
    span = request_written(tmp_path)
    assert [span["attributes"].get(name) for name in ENDING] == ["timed_out", "deadline", "decode"]
    assert (span["traceId"], span["parentSpanId"]) == (TRACE_ID, PARENT_ID)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_task_that_is_revoked_while_it_runs(tmp_path: Path) -> None:
    """`revoke(terminate=True)` ends the process that runs the task; its request is written, as cancelled."""
    begun = tmp_path / "begun"
    with real_worker(tmp_path) as call:
        code = f"while not pathlib.Path({str(begun)!r}).exists(): time.sleep(0.05)\n"
        assert call(f"{code}result.revoke(terminate=True)\nend()") == "TaskRevokedError"
    span = request_written(tmp_path)
    assert [span["attributes"].get(name) for name in ENDING] == ["cancelled", "shutdown", "decode"]


def written(path: Path) -> Iterator[dict[str, Any]]:
    """The spans of a file of OTLP JSON lines, their attributes as plain values."""
    for line in path.read_text(encoding="utf-8").splitlines():
        for resource in json.loads(line).get("resourceSpans", ()):
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    plain = {item["key"]: next(iter(item["value"].values())) for item in span.get("attributes", ())}
                    yield {**span, "attributes": plain}
