"""How time and memory grow with the number of requests.

    python -m tests.cli.scale 62500 125000 250000 500000 1000000

Each run is written by the generator into a pipe and read by ``otel-lifecycle report -`` in a process of its own, whose
CPU time and peak memory the system tells.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run: CPU seconds, and the most memory it ever held in MiB."""

    requests: int
    cpu_seconds: float
    peak_mib: float
    output: bytes

    def row(self) -> str:
        """Return it as a row of the table."""
        per = self.cpu_seconds / self.requests * 1e6
        return f"| {self.requests:,} | {self.cpu_seconds:.1f} | {per:.0f} | {self.peak_mib:.0f} |"


def measure(requests: int, *options: str) -> Measured:
    """Generate a run and report on it."""
    generator = subprocess.Popen(
        [sys.executable, "-m", "tests.cli.generator", str(requests)], stdout=subprocess.PIPE, cwd=ROOT
    )
    report = subprocess.Popen(
        [sys.executable, "-m", "otel_lifecycle._cli.main", "report", "-", "--json", *options],
        stdin=generator.stdout,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert generator.stdout is not None
    assert report.stdout is not None
    generator.stdout.close()
    with report.stdout as out:
        output = out.read()
    _, status, usage = os.wait4(report.pid, 0)
    report.returncode = os.waitstatus_to_exitcode(status)
    assert (generator.wait(), report.returncode) == (0, 0)
    return Measured(
        requests=requests,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        peak_mib=usage.ru_maxrss / 1024,
        output=output,
    )


def main() -> None:
    """Print the table."""
    sys.stdout.write("| requests | CPU seconds | µs a request | peak MiB |\n|---|---|---|---|\n")
    for text in sys.argv[1:] or ["62500", "125000", "250000", "500000", "1000000"]:
        sys.stdout.write(measure(int(text)).row() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
