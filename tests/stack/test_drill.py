"""The drill as a test: every alert fires, holds and resolves as it should, and no other one fires."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.stack import drill
from tests.stack.drill_watch import judge, table


def test_alerts_do_not_lie(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Killed, orderly, doubled, mixed, slower, recovering and healthy services; Collector, Jaeger, Prometheus away."""
    with drill.started(tmp_path, short=True) as running:
        drill.run(running)
        rows, wrong = judge(drill.EXPECTED, running.watch.seen, running.marks)
    with capsys.disabled():
        sys.stdout.write("\n" + table(rows) + "\n")
    wrong += running.wrong
    # As text, because pytest shortens a list.
    assert not wrong, "\n".join(wrong)
