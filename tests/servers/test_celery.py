"""A Celery worker with a broker in memory: the page's own task, its caller, its retries."""

from __future__ import annotations

from typing import Any

import celery.contrib.testing.worker
import pytest

from tests.integration.support_http import PARENT_ID, TRACE_ID, TRACEPARENT, wait_for
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


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_tasks_with_a_caller_an_error_and_a_retry(page_telemetry: Telemetry) -> None:
    """Completed; failed by its exception; and an attempt that is retried, which counts as neither."""
    broken_once = iter([True])

    def engine_of(prompt: str) -> Any:
        if prompt == "retry" and next(broken_once, False):
            raise ConnectionError
        return engine("good" if prompt == "retry" else prompt)

    first, failed, again = serve(["good", "broken", "retry"], engine_of)
    assert (first, type(failed), again) == ("t0 t1 t2 ", EngineError, "t0 t1 t2 ")
    wait_for(lambda: len(request_spans(page_telemetry)) == 4)
    spans = request_spans(page_telemetry)
    assert [(ending_of(span)["inference.outcome"], span["attributes"][ATTEMPT]) for span in spans] == [
        ("completed", 1),
        ("failed", 1),
        ("cancelled", 1),
        ("completed", 2),
    ]
    assert ending_of(spans[0]) == COMPLETED
    assert {(span["trace_id"], span["parent_id"]) for span in spans} == {(TRACE_ID, PARENT_ID)}
