"""A file exporter whose disk is full."""

from __future__ import annotations

from pathlib import Path

from tests.faults.matrix import Matrix
from tests.faults.running import run

SERVED = 400
LIMIT = 8 * 1024


def test_full_disk_costs_spans_and_no_counts(matrix: Matrix, tmp_path: Path) -> None:
    """The file takes what fits; no request fails for it, every one is counted, and the failure is in the log."""
    done = run(None, "disk", tmp_path, SERVED, LIMIT)
    counted = int(done.stdout.split()[1])
    kept = (tmp_path / "spans").read_text().count("chat tiny\n")
    matrix.add(
        "disk full, file exporter", SERVED, counted, kept, "what does not fit; each failed batch is logged by the SDK"
    )
    assert (done.returncode, counted) == (0, SERVED)
    assert 0 < kept < SERVED
    assert (tmp_path / "spans").stat().st_size <= LIMIT
    assert "File too large" in done.stderr
