"""The values that every metric of a request is labelled with.

How it works.  They are one frozen object, which is equal and hashed by value: requests of the same kind share the
attribute sets that are cached under it.  All of its fields have few values in practice, and each set is bounded where
it becomes attributes (``_instruments.label_sets``).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLabels:
    """What the metrics of a request are labelled with.

    ``tenant`` is a label only where a processor has ``tenant_metrics``.  ``provider`` is None where neither the
    provider nor the engine is known: the attribute is absent then.  ``role`` is not a label; it decides which metrics a
    request feeds.  ``unit``: what its outputs are counted in; None: tokens.  A change makes a new object, so that one
    object can serve as the key of a cache for all calls of a request in between.
    """

    operation: str = "chat"
    provider: str | None = None
    model: str | None = None
    traffic: str = "live"
    role: str = "whole"
    tenant: str | None = None
    unit: str | None = None
