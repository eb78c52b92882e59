"""The tokens of a usual request while it waits to be folded: eight bytes each, which no garbage collection visits.

A list of integers takes 40 bytes for each, all of which lie in memory that nobody has touched for a while when they are
freed, and the collector walks over them in every generation.  Both cost more than packing them once, at the end of the
request, when they are in the processor's cache.
"""

from __future__ import annotations

from array import array
from typing import Final

from otel_lifecycle._core.usual import UsualEnd, UsualVerdict

ABOVE: Final = 32
"""Fewer are left as they are: packing them would cost more than they do."""


def packed(end: UsualEnd, verdict: UsualVerdict | None) -> tuple[UsualEnd, UsualVerdict | None]:
    """Return the same with packed numbers; what a verdict was made from is left out."""
    if verdict is not None:
        return end._replace(log=None, gaps=None), verdict._replace(gaps=array("q", verdict.gaps))
    log, gaps = array("q", end.log or ()), None if end.gaps is None else array("q", end.gaps)
    return end._replace(log=log, gaps=gaps), None
