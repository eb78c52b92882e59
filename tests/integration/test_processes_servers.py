"""C72: several workers. What each of them counts adds up, under instance ids of their own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.faults.running import REQUESTS, by_instance, kept_spans, total
from tests.faults.servers import WORKERS, serving
from tests.support.otlp_receiver import HttpReceiver, OtlpReceiver

SENT = 100 * WORKERS


def resets(receiver: OtlpReceiver) -> list[str]:
    """Return the instances whose request count ever went back, or began anew."""
    wrong = []
    seen: dict[str, tuple[float, int]] = {}
    for export in receiver.exports():
        for point in export:
            if point["metric"] == REQUESTS:
                key = repr((point["resource"]["service.instance.id"], sorted(point["attributes"].items())))
                value, start = point["value"] or 0, point["start_ns"]
                before = seen.get(key, (0, start))
                if value < before[0] or start != before[1]:
                    wrong.append(key)
                seen[key] = (value, start)
    return wrong


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("uvicorn, 4 workers", marks=pytest.mark.slow),
        pytest.param("gunicorn", marks=pytest.mark.slow),
        "gunicorn, preloaded",
    ],
)
def test_c72_workers_add_up(otlp_http: HttpReceiver, tmp_path: Path, kind: str) -> None:
    """400 requests over four workers are 400 at the receiver, each instance exactly what its process answered."""
    with serving(otlp_http, kind, tmp_path / "log") as server:
        answered = Counter(server.load(SENT))
        otlp_http.wait_for(lambda: total(otlp_http) >= SENT and kept_spans(otlp_http) >= SENT, 60)
    assert None not in answered
    assert sorted(by_instance(otlp_http).values()) == sorted(answered.values())
    assert kept_spans(otlp_http) == SENT
    assert resets(otlp_http) == []


@pytest.mark.slow
def test_c72_own_providers_set_up_after_the_fork(otlp_http: HttpReceiver, tmp_path: Path) -> None:
    """The way the warning names, in gunicorn's post_fork: nothing is counted twice, and nothing is warned about."""
    with serving(otlp_http, "gunicorn, post_fork", tmp_path / "log", WITHOUT_CONFIGURE=1) as server:
        answered = Counter(server.load(SENT))
        otlp_http.wait_for(lambda: total(otlp_http) >= SENT, 60)
        log = server.log.read_text()
    assert sorted(by_instance(otlp_http).values()) == sorted(answered.values())
    assert "forked" not in log
