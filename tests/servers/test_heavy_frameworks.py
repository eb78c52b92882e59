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
async def engine(prompt):
    for token in ("t0 ", "t1 ", "t2 "):
        if prompt == "broken":
            raise RuntimeError("of the engine")
        yield token
"""
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
CALLS = f"""
import json, sys, time, urllib.request, urllib.error

def call(url, prompt, data=None):
    headers = {{"traceparent": "00-{TRACE_ID}-b7ad6b7169203331-01", "content-type": "application/json"}}
    request = urllib.request.Request(url, data or b"", headers, method="POST")
    try:
        return urllib.request.build_opener(urllib.request.ProxyHandler({{}})).open(request, timeout=30).read().decode()
    except urllib.error.HTTPError as error:
        return str(error.code)
"""
RAY = (
    CALLS
    + """
import ray
ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
serve.start(http_options={"host": "127.0.0.1", "port": PORT}, proxy_location="HeadOnly")
serve.run(deployment)
answers = [call(f"http://127.0.0.1:{PORT}/generate?prompt={prompt}", prompt) for prompt in ("good", "broken")]
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
    for _ in range(300):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/readyz", timeout=1).read()
            break
        except OSError:
            time.sleep(0.2)
    url = f"http://127.0.0.1:{PORT}/generate"
    answers = [call(url, prompt, json.dumps({"prompt": prompt}).encode()) for prompt in ("good", "broken")]
    server.terminate()
    server.wait(30)
    print(json.dumps(answers))
"""
)
FRAMEWORKS = [("ray", "ray-serve.md", RAY), ("bentoml", "bentoml.md", BENTO)]


def free_port() -> int:
    """Return a port that nobody listens on."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("framework", "name", "driver"), FRAMEWORKS, ids=["ray", "bentoml"])
def test_the_page_on_the_real_framework(tmp_path: Path, framework: str, name: str, driver: str) -> None:
    """Completed with its tokens, failed by its exception, both below the caller."""
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed; pip install '.[test-frameworks]'")
    source = "\n".join(BLOCK.findall((PAGE.parent / name).read_text(encoding="utf-8")))
    page = tmp_path / "page.py"
    page.write_text(f"{ENGINE}\n{source}\nPORT = {free_port()}\n{driver}", encoding="utf-8")
    environment = {
        **os.environ,
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LIFECYCLE_FILE": str(tmp_path / "run-{pid}.jsonl"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "BENTOML_DO_NOT_TRACK": "1",
        "no_proxy": "127.0.0.1,localhost",
    }
    command = [sys.executable, str(page)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True, timeout=220
    )
    assert done.returncode == 0, done.stderr[-3000:]
    good, broken = json.loads(done.stdout.splitlines()[-1])
    assert (good.strip('"'), broken.startswith("t0")) == ("t0 t1 t2 ", False)
    spans = [span for path in tmp_path.glob("run-*.jsonl*") for span in spans_of(path)]
    requests = [span for span in spans if "inference.outcome" in span["attributes"]]
    assert {span["traceId"] for span in requests} == {TRACE_ID}
    assert sorted(str(span["attributes"]["inference.outcome"]) for span in requests) == ["completed", "failed"]
    completed = next(span for span in requests if span["attributes"]["inference.outcome"] == "completed")
    assert int(completed["attributes"]["inference.streamed_tokens"]) == 3


def spans_of(path: Path) -> list[dict[str, Any]]:
    """Read the spans of a file of OTLP JSON lines."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        for resource in json.loads(line).get("resourceSpans", ()):
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    plain = {item["key"]: next(iter(item["value"].values())) for item in span.get("attributes", ())}
                    found.append({"traceId": span["traceId"], "attributes": plain})
    return found
