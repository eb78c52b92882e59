"""The drill as a test: every alert fires, holds and resolves as it should, and no other one fires."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.stack import drill


@pytest.mark.xfail(
    reason="two alerts of the stuck service resolved early, cause not yet found; docs/operate/drill.md",
    strict=False,
)
def test_alerts_do_not_lie(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Killed, orderly, doubled, mixed, slower, recovering and healthy services, a Collector and a Prometheus away."""
    with drill.started(tmp_path) as running:
        drill.run(running)
        rows, wrong = drill.judge(running)
    with capsys.disabled():
        sys.stdout.write("\n" + drill.table(rows) + "\n")
    assert wrong == []
