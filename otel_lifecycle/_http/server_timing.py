"""The ``Server-Timing`` header: the stages of a request up to the first byte of its answer, for any HTTP client.

A browser shows it in its network panel.  Format: https://www.w3.org/TR/server-timing/, durations in milliseconds.
"""

from __future__ import annotations

from typing import Final

from otel_lifecycle.driver import Driver

NAME: Final = "Server-Timing"


def server_timing(driver: Driver) -> str | None:
    """Return the value of the header: each stage that has a known duration so far; None where there is none."""
    stages = driver.stage_durations()
    # An unknown stage is left out: dur=0 would say that it took no time.
    return ", ".join(f"{stage};dur={seconds * 1000:.1f}" for stage, seconds in stages.items()) or None
