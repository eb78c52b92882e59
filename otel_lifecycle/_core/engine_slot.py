"""One request in the interval log of its engine: its stays in the states of the lifecycle.

A transition at a known time ends one stay and begins the next; that is all :meth:`EngineSlot.enter` does.  Where a time
is unknown, the stretch between the known times around it is unsure: the request may have run in it, in any stage.

The owner of a request only appends its transitions to ``moves``; the log enters them when another request asks for
them, under its lock, and one that nobody overlapped is never entered.  Other requests read the slot at any moment,
between two statements of ``enter`` included, and without a lock.  So pieces are only appended, ``view`` is replaced as
one tuple that says how many of them count, and the order of the writes is such that a reader sees the slot as it was
before the change or as it is after it; what comes into doubt may be in doubt a moment early.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from otel_lifecycle._core.crowd import ONE_IN
from otel_lifecycle._core.lifecycle import SHAPES, TERMINAL_STATES
from otel_lifecycle._core.overlap import Piece

MAX_SLOT_PIECES: Final = 256
"""Stays of one request; one that is preempted more often than this is unsure from then on."""

NEVER: Final = 2**63
"""Later than every time: the end of what has not ended.  Its negative is earlier than every time, which no number near
0 is: a reading of the clock is negative where somebody gives a time before the machine was started."""

ENDED: Final = "ended"
"""The last state that a log enters, whatever the request ended as."""

QUEUE: Final = "queue"
DECODE: Final = "decode"
PREEMPTED: Final = "preempted"
RUNNING: Final = frozenset({"preprocessing", "prefill", "decode"})
# A preempted request at an unknown time may as well have run: it did before, and it will again.
_MAY_RUN: Final = RUNNING | {PREEMPTED}
_STAYS: Final[dict[str, str | None]] = {
    "queued": QUEUE,
    "preprocessing": "preprocessing",
    "prefill": "prefill",
    "decode": "decode",
    "preempted": PREEMPTED,
}
# In this shape preprocessing comes before the queue: the request holds nothing of the engine yet.
_NO_DOUBT: Final[tuple[int | None, bool]] = (None, False)
_STAYS_BEFORE_QUEUE: Final[dict[str, str | None]] = {**_STAYS, "preprocessing": None}


class EngineSlot:
    """The stays of one request.

    ``moves``: transitions that are not entered yet, the oldest first; ``unread``: whether there is anything to enter;
    ``seated``: whether any was.  ``weight``: what
    the log counts for it once it has ended.  ``pieces``: stays that are over, ``(start, end, stage)``; ``view``: how
    many of them count, the stage it is in, and since when (None: unknown).  ``queued_from``, ``began`` and ``stopped``:
    when it joined the queue, first ran, and ended; ``queued``: the log has it among those that wait.  ``decoding``:
    since when it has been in decode, as ``view`` says, in one comparison; else NEVER.  ``prefilled``: no prefill of it
    lies after that time, known once it decodes.  ``steady``: it ran from
    ``began`` to ``stopped`` without a break and without doubt, so these three say everything about its running.
    ``shifts``: what it changes in the crowd of those that run, and when; of a steady one these are all changes, but for
    an end that was not entered yet.  ``unsure``: stretches in which it may have run.
    """

    __slots__ = (
        "_doubt",
        "_stays",
        "arrived",
        "began",
        "decoding",
        "moves",
        "pieces",
        "prefilled",
        "queued",
        "queued_from",
        "seated",
        "shifts",
        "steady",
        "stopped",
        "unread",
        "unsure",
        "view",
        "weight",
        "who",
    )

    # Its log sets it where the slot has ended.
    weight: int

    def __init__(self, who: object, shape: str, at: int | None) -> None:
        self.who = who
        self.arrived = at
        self.moves: list[tuple[str, int | None]] = []
        self.unread: Sequence[Any] = self.moves
        self.seated = self.queued = False
        self.stopped = NEVER
        self.begin(shape, at)

    def begin(self, shape: str, at: int | None) -> None:
        """Begin its first stay, at its arrival."""
        later = not SHAPES[shape].queues_first
        self.queued_from = NEVER if later or at is None else at
        self.began = self.decoding = self.prefilled = NEVER
        self.steady = True
        self.pieces: list[Piece[str]] = []
        # Both are replaced, not changed: one empty value serves all that have none.
        self.shifts: tuple[tuple[int, int], ...] = ()
        self.unsure: tuple[tuple[int, int], ...] = ()
        self.view: tuple[int, str | None, int | None] = (0, None if later else QUEUE, at)
        self._stays = _STAYS_BEFORE_QUEUE if later else _STAYS
        # Start of the current (or last) stretch of unknown times, and whether the request may have run in it.
        self._doubt = _NO_DOUBT

    @property
    def queues_first(self) -> bool:
        """Whether it queues as soon as it arrives."""
        return self._stays is _STAYS

    def told(self) -> int:
        """Return how many stays it has told of at most."""
        return len(self.pieces) + len(self.moves)

    def settle(self) -> None:
        """Apply what the owner has appended; the owner may append more at the same time."""
        moves = self.moves
        while moves:
            # Removed first: if a signal handler raises in between, it must not be applied twice.
            self.enter(*moves.pop(0))

    def enter(self, state: str, at: int | None) -> None:
        """Enter a state of the lifecycle at a time that may be unknown; the name of an end ends its last stay."""
        count, left, since = self.view
        # States that hold nothing of the engine, the end among them, have no stage.
        stage = self._stays.get(state)
        # Before the view: a reader that finds them NEVER looks at the stays.
        self.decoding = NEVER
        self.prefilled = self.prefilled if stage is None else NEVER
        # A time goes back where two clocks meet; which of the two moments came first is then in doubt.
        if at is None or since is None or at < since or count >= MAX_SLOT_PIECES:
            self._enter_in_doubt(stage, at)
            if at is not None and state in TERMINAL_STATES:
                self.stopped = at
            return
        if left is not None and at > since:
            self.pieces.append((since, at, left))
            count += 1
        if stage == PREEMPTED:
            # It runs in pieces from here on: `began` and `stopped` no longer say when.  Before the view, so that
            # nobody takes the stay that ends now for one that goes on.
            self.steady = False
        elif state in TERMINAL_STATES:
            # The log learns of the end later, when the request is judged.  Until then nobody must see it run on.
            self.stopped = at
        # None, of a state without a stage, is in no crowd.
        shift = ONE_IN.get(stage or "", 0) - ONE_IN.get(left or "", 0)
        if shift:
            self.shifts += ((at, shift),)
        # The piece is there before the view counts it.
        self.view = (count, stage, at)
        if stage == DECODE:
            self.decoding = at
            # Where a time went back, a prefill that came before may be over after it.
            self.prefilled = NEVER if self.unsure else at
        if self.began == NEVER and stage in RUNNING:
            self.began = at
        elif stage == QUEUE:
            self.queued_from = at

    def _enter_in_doubt(self, stage: str | None, at: int | None) -> None:
        count, left, since = self.view
        if count >= MAX_SLOT_PIECES or len(self.unsure) >= MAX_SLOT_PIECES:
            # Too many pieces to keep: its whole life becomes one doubt, which is bounded and never wrong.
            self.doubt(min(self.began, NEVER if self.arrived is None else self.arrived), NEVER)
            return
        start, may_run = self._doubt if since is None else (since, False)
        may_run = may_run or left in _MAY_RUN
        if may_run or stage in _MAY_RUN:
            self.steady = False
        if at is None:
            self._doubt = (start, may_run)
        elif may_run:
            start = at if start is None else start
            self.unsure += ((min(start, at), max(start, at)),)
        # After the stretch was added: a reader finds it there, or still going on.
        self.view = (count, stage, at)
        if at is not None and self.began == NEVER and stage in RUNNING:
            self.began = at

    def end(self, at: int | None, by: int) -> None:
        """End its last stay; ``by``: when it was known to have ended, for an unknown time."""
        if at is None:
            # In doubt before it stops: nobody may take ``by`` for the time of its end.
            self.enter(ENDED, None)
            at = by
        # First, so that a reader who still finds the last stay going on does not see it go on too long.
        self.stopped = at
        self.enter(ENDED, at)

    def doubt(self, start: int, end: int) -> None:
        """Make everything between two times unsure, and no stay certain any more."""
        self.steady = False
        self.decoding = NEVER
        self.unsure = ((start, end),)
        self._doubt = (None, False)
        self.view = (0, None, None)
        self.pieces = []
        # Whatever it enters from here on is not a stay that could be certain.
        self._stays = {}

    def stays(self) -> list[Piece[str]]:
        """Return its stays, the one that goes on included."""
        # One read: the tuple is replaced as a whole, so the three belong together.
        count, stage, since = self.view
        pieces = self.pieces[:count]
        if stage is not None and since is not None:
            pieces.append((since, self.stopped, stage))
        return pieces

    def doubts(self) -> list[tuple[int, int]]:
        """Return the stretches in which it may have run, the one that goes on included."""
        # The view first: what is added to the others after it is in doubt all the same.
        _, stage, since = self.view
        start, may_run = self._doubt
        if since is None and (may_run or stage in _MAY_RUN):
            return [*self.unsure, (-NEVER if start is None else start, self.stopped)]
        return [(start, min(end, self.stopped)) for start, end in self.unsure]
