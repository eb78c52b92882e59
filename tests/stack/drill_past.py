"""A day of ordinary load that lies behind the drill, so that what is usual does not come from the drill itself.

Prometheus gets it as blocks, made by promtool: the recorded figures that the slow baselines read, as they would be
after a day (compressed as all of the drill) of a service whose requests are all alike.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.stack import build
from tests.stack.drill_server import RATE, SCRIPTS
from tests.stack.load import MODEL, STAGES
from tests.stack.overlay import SHORTER

DAY_S: Final = 24 * 3600 // SHORTER
STEP_S: Final = 2
REQUESTS: Final = round(RATE * 300 / SHORTER)
"""In a window of five minutes."""


def write(series: Path, loads: Mapping[str, str]) -> None:
    """Write the day of each service (its name -> the script it plays, which is its bottleneck) under ``series``."""
    text = series.with_name("past.txt")
    text.write_text("".join(line + "\n" for line in _lines(loads)) + "# EOF\n")
    command = [str(build.ensure("promtool")), "tsdb", "create-blocks-from", "openmetrics", str(text), str(series)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def _lines(loads: Mapping[str, str]) -> Iterator[str]:
    now = int(time.time())
    figures = [(name, labels, value) for job, load in loads.items() for name, labels, value in _figures(job, load)]
    # OpenMetrics wants all samples of a metric together.
    for name, labels, value in sorted(figures):
        for at in range(now - DAY_S, now - STEP_S, STEP_S):
            yield f"{name}{{{labels}}} {value} {at}"


def _figures(job: str, load: str) -> Iterator[tuple[str, str, float]]:
    script = SCRIPTS[load]
    base = f'job="{job}",gen_ai_request_model="{MODEL}"'
    seconds = {stage: getattr(script, stage) for stage in STAGES[:3]}
    seconds["decode"] = script.gap * (script.tokens - 1)
    yield "inference:attributed:increase5m", base, REQUESTS
    for stage in (*STAGES, "mixed"):
        yield "inference:bottleneck:ratio5m", f'{base},inference_bottleneck="{stage}"', float(stage == load)
    for stage, mean in seconds.items():
        yield "inference:stage_seconds:mean", f'{base},inference_stage="{stage}"', mean
        yield "inference:stage_count:increase5m", f'{base},inference_stage="{stage}"', REQUESTS
    completed = f'{base},inference_outcome="completed"'
    yield "inference:e2e_seconds:mean", completed, script.seconds
    yield "inference:e2e_count:increase5m", completed, REQUESTS
