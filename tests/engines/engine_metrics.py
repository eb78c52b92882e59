"""An engine's own ``/metrics``: Prometheus text, as sums over all labels."""

from __future__ import annotations

from collections import defaultdict

import httpx
from prometheus_client.parser import text_string_to_metric_families


def scrape(base: str, path: str = "/metrics") -> dict[str, float]:
    """Return sample name -> the sum of its values over all label sets; buckets are left out."""
    text = httpx.get(base + path, timeout=30).raise_for_status().text
    sums: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.endswith(("_bucket", "_created")):
                sums[sample.name] += sample.value
    return dict(sums)


def grown(after: dict[str, float], before: dict[str, float], name: str) -> float | None:
    """Return what a counter grew by; None if the engine has no such counter."""
    return after[name] - before.get(name, 0.0) if name in after else None
