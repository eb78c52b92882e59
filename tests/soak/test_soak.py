"""A hundred thousand short requests, one after another: all counted, memory flat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.faults.programs.soak import PARTS
from tests.faults.running import command, started, total
from tests.support.otlp_receiver import HttpReceiver

MIB = 1024 * 1024
FLAT = 0.04
"""By what share memory may still rise from the second quarter of the run to the last one."""


def soak(receiver: HttpReceiver, count: int, log: Path) -> tuple[list[tuple[int, int]], int]:
    """Run the soak; return its curve of (requests, bytes) and how many it opened."""
    curve: list[tuple[int, int]] = []
    # A queue for spans is full or empty as the scheduler has it: at its size of 2048 that is 10 MiB of noise.
    quick: dict[str, Any] = {"OTEL_BSP_MAX_QUEUE_SIZE": 512, "OTEL_METRIC_EXPORT_INTERVAL": 1000}
    with started(receiver, command("soak", count), log, **quick) as process:
        assert process.stdout is not None
        for line in process.stdout:
            word, number = line.split()
            if word == "opened":
                opened = int(number)
                process.wait(60)
                return curve, opened
            curve.append((int(word), int(number)))
            receiver.clear("traces")
    raise AssertionError(f"it broke off: {log.read_text()[-2000:]}")


def drawn(curve: list[tuple[int, int]]) -> str:
    """Return the curve as text, one bar a part."""
    top = max(size for _, size in curve)
    bars = (f"{count:>8} requests {size / MIB:7.1f} MiB  {'#' * (size * 60 // top)}" for count, size in curve)
    return "\n".join(bars)


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(1500)])])
def test_memory_is_flat(
    otlp_http: HttpReceiver, tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    """Ends of every kind, dropped handles, forgotten streams, tokens after the end: each counted once, none kept."""
    curve, opened = soak(otlp_http, count, tmp_path / "log")
    with capsys.disabled():
        print(f"\n{drawn(curve)}")  # noqa: T201  # the curve is what one looks at
    assert opened == count
    assert total(otlp_http) == count
    assert total(otlp_http, "inference.active_requests") == 0
    sizes = [size for _, size in curve]
    quarter = PARTS // 4
    second, last = (sum(sizes[first : first + quarter]) / quarter for first in (quarter, PARTS - quarter))
    assert last - second < FLAT * second, drawn(curve)
