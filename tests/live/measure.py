"""What the receiver and the page cost: 10,000 requests kept, 200 a second coming in, a page that is scrolled.

    python -m tests.live.measure [seconds] [requests a second]

Prints the receiver's CPU as a share of one core, and the long tasks of the page's main thread.  A long task is measured
by the clock; on a busy machine it is mostly waiting for a core, so the CPU time of the longest task is printed too.
`chrt -r 5 python -m tests.live.measure` (as root) gives the browser a core whatever else runs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from playwright.sync_api import Page, sync_playwright

from tests.live.sent import finish, traces
from tests.support.telemetry import Telemetry

KEPT = 10_000
BATCHES = 5
"""Messages a second, as an exporter with a delay of 200 ms sends them."""
WATCH = """
window.longest = [];
new PerformanceObserver((list) => { for (const one of list.getEntries()) window.longest.push(one.duration); })
  .observe({ type: "longtask" });
"""
HEADERS = {"content-type": "application/x-protobuf"}


def messages(rate: int) -> Iterator[bytes]:
    """Yield messages of new requests of a real SDK, each a fifth of a second's worth."""
    telemetry, random = Telemetry(token_times=True), Random(1)
    for number in range(rate // BATCHES):
        finish(telemetry, request_id=f"r-{number}", input_tokens=number)
    made = TracesData.FromString(traces(telemetry))
    telemetry.shutdown()
    while True:
        shift = time.time_ns() - 100_000_000 - made.resource_spans[0].scope_spans[0].spans[0].start_time_unix_nano
        for batch in made.resource_spans:
            for scope in batch.scope_spans:
                for span in scope.spans:
                    # The same change for every span of a trace keeps them together.
                    span.trace_id = (int.from_bytes(span.trace_id, "big") ^ CHANGE[0]).to_bytes(16, "big")
                    span.span_id = (int.from_bytes(span.span_id, "big") ^ CHANGE[1]).to_bytes(8, "big")
                    if span.parent_span_id:
                        span.parent_span_id = (int.from_bytes(span.parent_span_id, "big") ^ CHANGE[1]).to_bytes(
                            8, "big"
                        )
                    span.start_time_unix_nano += shift
                    span.end_time_unix_nano += shift
                    for event in span.events:
                        event.time_unix_nano += shift
        CHANGE[:] = random.getrandbits(128), random.getrandbits(64)
        yield made.SerializeToString()


CHANGE = [0, 0]


def tell(line: str) -> None:
    """Print a line of the result."""
    sys.stdout.write(f"{line}\n")


def cpu_seconds(pid: int) -> float:
    """Return the CPU time a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def longest_cpu_ms(events: list[dict[str, Any]]) -> float:
    """Return the CPU time of the longest task of a page's main thread; other programs do not count into it."""
    mains = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    tasks = [event.get("tdur", 0) for event in events if (event["pid"], event["tid"]) in mains]
    return max(tasks, default=0) / 1000


def main(seconds: float, rate: int) -> None:
    """Start a receiver, fill it, open the page, send and scroll."""
    command = [sys.executable, "-m", "otel_lifecycle._cli.main", "live", "--port", "0", "--grpc-port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        found = re.search(r"http://\S+", server.stderr.readline())
        assert found is not None
        try:
            _measure(server.pid, found[0], seconds, rate)
        finally:
            server.terminate()


def _measure(pid: int, url: str, seconds: float, rate: int) -> None:
    source = messages(rate)
    with httpx.Client() as client, sync_playwright() as playwright:
        for _ in range(KEPT * BATCHES // rate + 1):
            client.post(f"{url}v1/traces", content=next(source), headers=HEADERS)
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": 1400, "height": 900}, bypass_csp=True)
        page.add_init_script(WATCH)
        page.goto(url)
        page.wait_for_function("list.rows.size >= 9000")
        loading = page.evaluate("window.longest.splice(0)")
        tell(f"while loading {KEPT:,} rows: {len(loading)} long tasks, {max(loading, default=0):.0f} ms at most")
        chromium.start_tracing(page=page, categories=["toplevel"])
        page.wait_for_timeout(2000)  # what loading and the start of the trace still hold is not scrolling
        page.evaluate("window.longest.splice(0)")
        _send_and_scroll(client, page, source, url, pid, seconds)
        trace = json.loads(chromium.stop_tracing())
        tell(f"page: a task took {longest_cpu_ms(trace['traceEvents']):.0f} ms of CPU on its main thread at most")
        chromium.close()


def _send_and_scroll(
    client: httpx.Client, page: Page, source: Iterator[bytes], url: str, pid: int, seconds: float
) -> None:
    began, cpu, turn = time.monotonic(), cpu_seconds(pid), 0
    page.mouse.move(700, 800)
    while (now := time.monotonic()) < began + seconds:
        client.post(f"{url}v1/traces", content=next(source), headers=HEADERS)
        for _ in range(4):
            page.mouse.wheel(0, 900 if turn % 100 < 50 else -900)
            turn += 1
        time.sleep(max(0.0, now + 1 / BATCHES - time.monotonic()))
    passed = time.monotonic() - began
    tasks = page.evaluate("window.longest")
    tell(f"receiver: {(cpu_seconds(pid) - cpu) / passed:.1%} of a core over {passed:.0f} s")
    tell(f"page: {len(tasks)} long tasks, {max(tasks, default=0):.0f} ms at most; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 20, int(sys.argv[2]) if len(sys.argv) > 2 else 200)
