"""Tokens that a backend produces after its request has ended: each is wasted, and together they are one violation.

They show a backend that goes on generating for a client that left.  The lag, from the end to the last of them, is
recorded once they have settled.
"""

from __future__ import annotations

from typing import Final

from otel_lifecycle._core.tokens import Log
from otel_lifecycle._core.values import whole

SETTLED_NS: Final = 10 * 10**9
"""After the last token past the end, how long until its lag is recorded: longer than any engine needs for a step."""


class TokensAfterEnd:
    """What came after the end of one request.

    ``told``: whether the one violation was counted.  ``logs`` are the lists that tokens were appended to until the end:
    a thread that was in the middle of ``token()`` then still appends to one.
    """

    __slots__ = ("_last", "_logs", "_noticed", "_uncounted", "told")

    def __init__(self, logs: tuple[Log, ...]) -> None:
        self._logs = logs
        self._uncounted = 0
        self._noticed = 0
        self._last = 0
        self.told = False

    def __bool__(self) -> bool:
        """Whether anything came that was not recorded yet."""
        return bool(self._uncounted or self._noticed or any(self._logs))

    def add(self, count: object, at: int, now: int) -> None:
        """Add tokens of a mark; one of unknown size adds none, but its time counts."""
        self._uncounted += whole(count) or 0
        # The lag counts to the time it was produced, the wait for more from the time it was noticed.
        self._last, self._noticed = at, now

    def take_from_path(self, now: int) -> bool:
        """Add what threads appended that were in the middle of ``token()``; return whether there was any."""
        taken: Log = []
        for log in self._logs:
            # Only what was copied is deleted: another thread may append between the two.
            new = log[:]
            del log[: len(new)]
            taken += new
        if taken:
            chunks = [item for item in taken if type(item) is tuple]
            times = [item[0] if type(item) is tuple else item for item in taken]
            self.add(len(taken) + sum(count - 1 for _, count in chunks), max(times), now)
        return bool(taken)

    def settled(self, now: int) -> bool:
        """Return whether no more tokens are expected."""
        return not self._noticed or now - self._noticed >= SETTLED_NS

    def take_count(self) -> int:
        """Return the tokens that came since the last call."""
        count, self._uncounted = self._uncounted, 0
        return count

    def take_last(self) -> int | None:
        """Return the time of the last one, once."""
        last, self._noticed = self._noticed and self._last, 0
        return last or None
