"""Every token's offset from the first, packed for one span attribute.

Base64 of little-endian unsigned 32-bit microseconds: text, since older SDKs try to read bytes as UTF-8, and one
attribute, since a list of a thousand integers costs forty times as much to set.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from otel_lifecycle._core.timeline import Timeline
from otel_lifecycle._core.tokens import MAX_TOKEN_TIMES, Log, Time, merged_times

# Eight bytes a token would double the attribute for the few streams longer than 71 minutes.
MAX_OFFSET_US: Final = 2**32 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOffsets:
    """``packed``: the offsets in order, as text.  ``dropped``: tokens that have no offset there."""

    packed: str
    dropped: int


def token_offsets(timeline: Timeline) -> TokenOffsets | None:
    """Return the offsets of a request's tokens; None where clocks proven apart timed them or not all are held."""
    if timeline.folded or timeline.folded_remote:
        return None
    here, there = list(timeline.tokens.values()), list(timeline.remote_tokens.values())
    # Offsets between two clocks that disagree would look exact and be wrong.
    if any(here) and any(there) and timeline.clocks_apart():
        return None
    return offsets_of([*here, *there])


def offsets_of(logs: Sequence[Log]) -> TokenOffsets | None:
    """Return the offsets of the tokens in some logs, as far as they fit."""
    listed = merged_times(logs, MAX_TOKEN_TIMES)
    return pack_offsets(listed.times, listed.dropped)


def pack_offsets(times: Sequence[Time | None], dropped: int = 0) -> TokenOffsets | None:
    """Pack token times in nanoseconds; unknown ones are counted as dropped.  None without any, or beyond 71 minutes."""
    known = sorted(time for time in times if time is not None)
    if not known or (known[-1] - known[0]) // 1000 > MAX_OFFSET_US:
        return None
    packed = struct.pack(f"<{len(known)}I", *((time - known[0]) // 1000 for time in known))
    return TokenOffsets(packed=b64encode(packed).decode("ascii"), dropped=dropped + len(times) - len(known))
