"""The pages of Ray Serve and BentoML on the real frameworks, each in a process of its own that serves and stops.

They are in no ordinary environment: ``pip install '.[test-frameworks]'``, then ``pytest -m slow tests/servers``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.servers.ends_page import PAGE

BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
ENGINE = """
import asyncio

async def engine(prompt):
    if prompt == "early":
        raise RuntimeError("of the engine")
    for token in ("t0 ", "t1 ", "t2 "):
        yield token
        if prompt == "broken":
            raise RuntimeError("of the engine")
    while prompt in ("slow", "left"):
        await asyncio.sleep(0.05)
        yield "t "
"""
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PROMPTS = ("good", "early", "broken", "left", "slow")
DEADLINE = 4
CALLS = f"""
import json, sys, time, urllib.request, urllib.error, http.client

PROMPTS = {PROMPTS}

def call(url, prompt, data=None):
    headers = {{
        "traceparent": "00-{TRACE_ID}-b7ad6b7169203331-01",
        "content-type": "application/json",
        "x-prompt": prompt,
    }}
    request = urllib.request.Request(url, data or b"", headers, method="POST")
    try:
        answer = urllib.request.build_opener(urllib.request.ProxyHandler({{}})).open(request, timeout=60)
        if prompt == "left":
            answer.read(3)
            answer.close()
            return "left"
        return answer.read().decode()
    except urllib.error.HTTPError as error:
        return str(error.code)
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
"""
# Ray's own start gives its agents 30 seconds, which a busy machine does not keep; the patience here is the test's.
RAY = (
    CALLS
    + f"""
import ray, ray._private.services as services

def patient(*arguments, _get_node=services.get_node, **named):
    for _ in range(400):
        try:
            return _get_node(*arguments, **named)
        except RuntimeError:
            time.sleep(0.5)
    return _get_node(*arguments, **named)

services.get_node = patient
ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
http_options = {{"host": "127.0.0.1", "port": PORT, "request_timeout_s": {DEADLINE}}}
serve.start(http_options=http_options, proxy_location="HeadOnly")
serve.run(deployment)
answers = [call(f"http://127.0.0.1:{{PORT}}/generate?prompt={{prompt}}", prompt) for prompt in PROMPTS]
time.sleep(1)
serve.shutdown(); ray.shutdown()
print(json.dumps(answers))
"""
)
BENTO = (
    CALLS
    + """
if __name__ == "__main__":
    import subprocess, os
    command = [sys.executable, "-m", "bentoml", "serve", "page:Generator", "--port", str(PORT), "--host", "127.0.0.1"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/readyz", timeout=1).read()
            break
        except OSError:
            time.sleep(0.2)
    url = f"http://127.0.0.1:{PORT}"
    paths = [("stream", prompt) for prompt in PROMPTS if prompt != "slow"]
    # Its timeout is that of the first byte, so a stream that goes on has none.
    paths += [("generate", prompt) for prompt in ("slow", "good")]
    answers = [call(f"{url}/{path}", prompt, json.dumps({"prompt": prompt}).encode()) for path, prompt in paths]
    time.sleep(1)
    server.terminate()
    server.wait(60)
    print(json.dumps(answers))
"""
)


def free_port() -> int:
    """Return a port that nobody listens on."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def serve(tmp_path: Path, framework: str, name: str, driver: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Serve the page in a process of its own; return the answers and the attributes of each request, in order."""
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed; pip install '.[test-frameworks]'")
    source = "\n".join(BLOCK.findall((PAGE.parent / name).read_text(encoding="utf-8")))
    # The page's deadlines are those of a server; a test waits less.
    source = source.replace("deadline=59", f"deadline={DEADLINE - 0.5}").replace(
        '"timeout": 60', f'"timeout": {DEADLINE}'
    )
    page = tmp_path / "page.py"
    page.write_text(f"{ENGINE}\n{source}\nPORT = {free_port()}\n{driver}", encoding="utf-8")
    environment = {
        **os.environ,
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LIFECYCLE_FILE": str(tmp_path / "run-{pid}.jsonl"),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "200",
        "RAY_agent_register_timeout_ms": "300000",
        "BENTOML_DO_NOT_TRACK": "1",
        "no_proxy": "127.0.0.1,localhost",
    }
    command = [sys.executable, str(page)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers: list[str] = json.loads(done.stdout.splitlines()[-1])
    spans = [span for path in tmp_path.glob("run-*.jsonl*") for span in spans_of(path)]
    requests = [span for span in spans if "inference.outcome" in span["attributes"]]
    assert {span["traceId"] for span in requests} == {TRACE_ID}
    return answers, [span["attributes"] for span in sorted(requests, key=lambda span: span["start"])]


def ends_of(requests: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return the outcome, the reason and the error type of each request."""
    names = ("inference.outcome", "inference.end.reason", "error.type")
    return [tuple(attributes.get(name) for name in names) for attributes in requests]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ray_serve(tmp_path: Path) -> None:
    """Completed, failed before and after the first byte, client gone, deadline; each below its caller.

    Ray's own processes have 15 seconds to start, which only a machine with a core to spare keeps.
    """
    answers, requests = serve(tmp_path, "ray", "ray-serve.md", RAY)
    assert (answers[0], answers[3]) == ("t0 t1 t2 ", "left")
    assert ends_of(requests) == [
        ("completed", None, None),
        ("failed", None, "RuntimeError"),
        ("failed", None, "RuntimeError"),
        # Ray cancels for a client that left, and does not say that it did.
        ("cancelled", None, None),
        ("timed_out", "deadline", "timeout"),
    ]
    streamed = [int(attributes.get("inference.streamed_tokens", 0)) for attributes in requests]
    assert streamed[:3] == [3, 0, 1]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_bentoml(tmp_path: Path) -> None:
    """Completed, failed before and after the first byte, client gone, deadline; each below its caller."""
    answers, requests = serve(tmp_path, "bentoml", "bentoml.md", BENTO)
    assert (answers[0], answers[3], answers[5].strip('"')) == ("t0 t1 t2 ", "left", "t0 t1 t2 ")
    assert ends_of(requests) == [
        ("completed", None, None),
        ("failed", None, "RuntimeError"),
        ("failed", None, "RuntimeError"),
        ("cancelled", "client_disconnected", None),
        ("timed_out", "deadline", "timeout"),
        ("completed", None, None),
    ]
    streamed = [int(attributes.get("inference.streamed_tokens", 0)) for attributes in requests]
    assert (streamed[:3], streamed[5]) == ([3, 0, 1], 3)


def spans_of(path: Path) -> list[dict[str, Any]]:
    """Read the spans of a file of OTLP JSON lines."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        for resource in json.loads(line).get("resourceSpans", ()):
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    plain = {item["key"]: next(iter(item["value"].values())) for item in span.get("attributes", ())}
                    start = int(span["startTimeUnixNano"])
                    found.append({"traceId": span["traceId"], "start": start, "attributes": plain})
    return found
