"""The examples that need no model run as they are, and print what they promise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(module: str) -> list[str]:
    """Run an example as a user does; return the lines it printed."""
    done = subprocess.run(
        [sys.executable, "-m", module], cwd=ROOT, capture_output=True, text=True, check=False, timeout=100
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_the_quickstart_shows_stages_bottleneck_and_metrics() -> None:
    """Three requests of five spans each; the two short ones waited for the long one, so none was held up by nothing."""
    lines = run("examples.quickstart")
    names = [line.split()[0] for line in lines[:15]]
    assert names == ["queue", "preprocessing", "prefill", "decode", "chat"] * 3
    assert lines[4].split()[-1] == "prefill"
    assert [line.replace(" counts ", " ").split() for line in lines[15:]] == [
        ["gen_ai.server.request.duration", "3"],
        ["gen_ai.server.time_per_output_token", "3"],
        ["gen_ai.server.time_to_first_token", "3"],
        ["inference.inter_token_latency", "65"],
        ["inference.request.duration", "3"],
        ["inference.requests", "3"],
        ["inference.servers", "1"],
        ["inference.stage.duration", "12"],
        ["inference.time_per_output_token", "3"],
        ["inference.time_to_first_token", "3"],
        ["inference.tokens", "68"],
    ]


def test_the_quickstart_is_forty_lines() -> None:
    """It is the first thing a user reads."""
    assert len((ROOT / "examples" / "quickstart.py").read_text().splitlines()) <= 40


def test_broken_lifecycles_show_every_violation() -> None:
    """Each bug in a live server and in a foreign span is named, where it raises and where it is counted."""
    lines = [re.sub(r"; legal there.*", "", line) for line in run("examples.broken_lifecycle")]
    assert lines == [
        "Live requests:",
        "  admitted twice: completed",
        "    illegal_transition: admit while preprocessing",
        "  never ended: incomplete",
        "    missing_terminal: left while preprocessing",
        "  goes on after its client left: cancelled",
        "    what came after its end is counted below: its span was gone by then",
        "  clock set back: completed",
        "    non_monotonic_time: input_ready while preprocessing",
        "Spans of another library:",
        "  token before admission: completed",
        "    illegal_transition: first_token while queued",
        "  two ends: completed",
        "    duplicate_terminal: fail while completed",
        "Where it raises:",
        "  replay: IllegalTransition: 'first_token' while queued",
        "  strict: IllegalTransition: 'complete' while queued",
        "Counted as inference.transition.violations:",
        "  duplicate_terminal: 2",
        "  event_after_terminal: 1",
        "  illegal_transition: 2",
        "  missing_terminal: 1",
        "  non_monotonic_time: 1",
    ]
