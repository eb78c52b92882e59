"""Who held a request: the split of its queue wait and of its stalls, the culprits, and its company.

Overlap is evidence, not proof: the names on the wire say *beside*, and the part nobody explains is always given.  All
times are integer nanoseconds, and the parts of a split add up to their whole exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from otel_lifecycle._core.crowd import StageShares
from otel_lifecycle._core.engine_slot import EngineSlot
from otel_lifecycle._core.overlap import apportion
from otel_lifecycle._core.stalls import Stalls

# Each becomes a span link. A wait behind many equal requests has no culprit, so the list can be short.
MAX_CULPRITS: Final = 3
"""Culprits named for each reason."""

CULPRIT_SHARE: Final = 10
"""A culprit took at least one part in this many of the whole,"""

CULPRIT_NS: Final = 1_000_000
"""and at least this long: a link to a request that held another for microseconds is noise."""

LinkReason = Literal["queue", "stall"]
Cause = Literal["prefill", "decode", "preprocessing", "idle", "mixed", "preemption", "own"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSplit:
    """The queue wait by stage: at each instant it is divided equally among the requests that run."""

    preprocessing: int = 0
    prefill: int = 0
    decode: int = 0
    idle: int = 0

    @property
    def wait(self) -> int:
        """The whole wait."""
        return self.preprocessing + self.prefill + self.decode + self.idle


@dataclass(frozen=True, slots=True, kw_only=True)
class StallSplit:
    """The stall time: inside the request's own preemption, beside another's prefill, and what remains."""

    prefill: int = 0
    preemption: int = 0
    unexplained: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """A request that held another for ``time`` nanoseconds; ``who``: what the log was given for it."""

    who: object
    reason: LinkReason
    time: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Interference:
    """What the other requests of an engine did to one; each figure None where it is not known.

    ``ahead`` and ``running``: requests that waited, and ran, when it arrived.  ``company_prefill`` and
    ``company_decode``: mean number of other running requests in that stage.  ``complete``: no other request was open
    meanwhile whose boundaries are unknown.
    """

    ahead: int | None = None
    running: int | None = None
    queue: QueueSplit | None = None
    stalls: Stalls | None = None
    stall_split: StallSplit | None = None
    company_prefill: float | None = None
    company_decode: float | None = None
    culprits: tuple[Culprit, ...] = ()
    complete: bool = True

    def cause(self, bottleneck: str | None, decode_time: int | None) -> Cause | None:
        """Return the cause of a bottleneck; None where there is none to name.

        For the queue it is the part that makes up at least half of the wait, else ``mixed``.  For decode, if there are
        enough gaps to see stalls, it is what took at least half of the decode time, else ``own``.
        """
        if bottleneck == "queue" and self.queue is not None:
            return _queue_cause(self.queue)
        if bottleneck == "decode" and self.stall_split is not None and decode_time is not None:
            split = self.stall_split
            # Doubled integers instead of a division: exactly half counts as half.
            if 2 * max(split.prefill, split.preemption) < decode_time:
                return "own"
            return "prefill" if split.prefill >= split.preemption else "preemption"
        return None


def _queue_cause(split: QueueSplit) -> Cause:
    # `max` keeps the first of equals: at a tie a stage that ran comes before idle.
    parts: dict[Cause, int] = {
        "prefill": split.prefill,
        "decode": split.decode,
        "preprocessing": split.preprocessing,
        "idle": split.idle,
    }
    largest = max(parts, key=parts.__getitem__)
    return largest if 2 * parts[largest] >= split.wait else "mixed"


def queue_split(shares: StageShares, wait: int) -> QueueSplit:
    """Return the shares of the stages, rounded once, to parts that add up to the wait."""
    scaled = {
        "preprocessing": shares.preprocessing,
        "prefill": shares.prefill,
        "decode": shares.decode,
        "idle": shares.idle * shares.scale,
    }
    return QueueSplit(**apportion(scaled, shares.scale, wait))


def may_be_culprit(time: int, scale: int, whole: int) -> bool:
    """Return whether a time, times ``scale``, is a fair part of the whole."""
    return CULPRIT_SHARE * time >= _least(scale, whole)


def _least(scale: int, whole: int) -> int:
    # Both sides are scaled, so that integers are compared and nothing is rounded before the decision.
    return max(whole * scale, CULPRIT_SHARE * CULPRIT_NS * scale)


def culprits(times: Mapping[EngineSlot, int], scale: int, whole: int, reason: LinkReason) -> list[Culprit]:
    """Return the requests with the largest times, each times ``scale``, that took a fair part of the whole.

    Among equal times the request that ran first comes first.
    """
    least = _least(scale, whole)
    found = [(-time, slot.began, slot) for slot, time in times.items() if CULPRIT_SHARE * time >= least]
    # Without the key a tie would go on to compare the slots, which have no order.
    found.sort(key=lambda one: one[:2])
    return [Culprit(who=slot.who, reason=reason, time=-time // scale) for time, _, slot in found[:MAX_CULPRITS]]
