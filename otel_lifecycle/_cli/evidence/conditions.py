"""The conditions of a workload: what must be equal before two runs are compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from otel_lifecycle import semconv
from otel_lifecycle._cli.requests.model import SeenRequest

KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "model": (semconv.GEN_AI_REQUEST_MODEL,),
    "revision": (semconv.MODEL_REVISION,),
    "dtype": (semconv.MODEL_DTYPE,),
    "operation": (semconv.GEN_AI_OPERATION_NAME,),
    "provider": (semconv.GEN_AI_PROVIDER_NAME,),
    "backend": (semconv.BACKEND_NAME,),
    "backend version": (semconv.BACKEND_VERSION,),
    "hardware": (semconv.HARDWARE, "hw.name", "hw.model", "device.model.name", "host.cpu.model.name", "host.type"),
    "architecture": ("host.arch",),
    "batch size": (semconv.BATCH_SIZE,),
    "concurrency": (semconv.CONCURRENCY,),
    "cache policy": (semconv.CACHE_POLICY,),
    "streamed": (semconv.GEN_AI_REQUEST_STREAM,),
    "max tokens": (semconv.GEN_AI_REQUEST_MAX_TOKENS,),
    "workload": (semconv.WORKLOAD,),
    "service": ("service.name",),
    "service version": ("service.version",),
}
"""Condition -> the attributes it is read from, the first that is there."""

# A value may be an id by mistake; the counts must not grow with the requests.
MAX_VALUES: Final = 32
"""Different values of one condition that are kept apart."""


class Conditions:
    """The count of each value of each condition."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {name: Counter() for name in KEYS}

    def add(self, request: SeenRequest) -> None:
        """Take a request into account; a condition it does not state is not counted."""
        attributes = request.attributes
        for name, keys in KEYS.items():
            for key in keys:
                if key in attributes:
                    self._count(self.counts[name], str(attributes[key]))
                    break

    @staticmethod
    def _count(counts: Counter[str], value: str) -> None:
        if value not in counts and len(counts) >= MAX_VALUES:
            value = semconv.OTHER
        counts[value] += 1

    def adopt(self, attributes: Mapping[str, Any], number: int) -> None:
        """Take conditions that no request states from elsewhere, for so many requests."""
        for name, keys in KEYS.items():
            stated = next((attributes[key] for key in keys if key in attributes), None)
            # What a request states is nearer to it than what its server stated at start.
            if stated is not None and number and not self.counts[name]:
                self.counts[name][str(stated)] = number

    def describe(self) -> dict[str, dict[str, Any]]:
        """Return every condition that is stated: its values with their counts, most frequent first."""
        return {name: dict(counts.most_common()) for name, counts in self.counts.items() if counts}
