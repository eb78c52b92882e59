"""Cutting the text of a stream into frames, however the network cut it.

Server-sent events are lines of ``field: value``, ended by LF, CRLF or CR; an event is its ``data`` lines joined, and
ends with a blank line (WHATWG, "Server-sent events").  Lines of JSON (NDJSON) are one frame each.

Two departures from that standard, which real servers and clients require:

* A frame counts as soon as it is whole JSON, even before its blank line.  Clients that read line by line never see the
  blank line, and waiting for the next piece would move the time of a token.
* So two whole documents on consecutive ``data`` lines, without a blank line between them, are two frames.

The cost is linear in the bytes.  What is not finished is kept as a list of pieces and joined once; a frame that looks
finished and is not is parsed at most ``MAX_ATTEMPTS`` times before its line, or its blank line, ends it.
"""

from __future__ import annotations

import codecs
import re
from typing import Final

from otel_lifecycle._frames.dialects import DONE, UNSIZED, read_data
from otel_lifecycle._frames.frame import Frame

MAX_HELD: Final = 128 * 1024
"""Characters kept of a frame until the rest of it comes; parsing more would hold up the serving thread."""

MAX_ATTEMPTS: Final = 16
"""Times that one unfinished frame is parsed early."""

_LINE_END: Final = re.compile(r"\r\n|\n|\r")
# Not str.splitlines: JSON may hold a raw U+2028 or U+0085, which end no line of a server-sent event.


class EventReader:
    """Reads the frames of one stream from pieces of its text, in order.

    :meth:`feed` returns the frames that a piece finished, :meth:`finish` what the end of the stream finishes.
    """

    __slots__ = ("_attempts", "_bare", "_data", "_data_size", "_decode", "_held", "_skip_newline", "_spoilt", "_tail")

    def __init__(self) -> None:
        # Incremental, because a piece may end within a character; "replace", so that one bad byte costs only itself.
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._tail: list[str] = []
        self._data: list[str] = []
        # Kept beside the list: adding it up at each line made a document of many short lines cost their square.
        self._data_size = 0
        self._held = 0
        self._attempts = 0
        self._skip_newline = False
        # Inside a JSON document that spans lines without being in "data" fields.
        self._bare = False
        # An event that is longer than MAX_HELD, or a line that was read before it ended: skip to where it ends.
        self._spoilt = False

    def feed(self, piece: str | bytes) -> list[Frame]:
        """Take the next piece of the stream; return the frames that are whole now."""
        text = piece if isinstance(piece, str) else self._decode(piece)
        if self._skip_newline and text:
            # The CR that ended the piece before was half of a CRLF.
            self._skip_newline = False
            text = text.removeprefix("\n")
        frames: list[Frame] = []
        *lines, rest = _LINE_END.split(text)
        for line in lines:
            self._tail.append(line)
            self._take_line(self._take_tail(), frames)
        self._skip_newline = text.endswith("\r")
        # Not held as a line yet: a token in it is due now, not when the next piece comes.
        if rest:
            self._hold(rest, frames)
        return frames

    def finish(self) -> list[Frame]:
        """Take the end of the stream as the end of its last line and event."""
        frames: list[Frame] = []
        whole = self._take_tail()
        if whole:
            self._take_line(whole, frames)
        self._take_line("", frames)
        return frames

    def _take_tail(self) -> str:
        """Return the line that has ended; it is held as data from now on, if at all."""
        line, self._tail = "".join(self._tail), []
        self._held = self._data_size if line else self._held
        return line

    def _hold(self, rest: str, frames: list[Frame]) -> None:
        """Keep the beginning of a line; read it at once where it is a whole frame already."""
        self._tail.append(rest)
        if self._spoilt:
            # Only the last characters matter: whether the line is blank when it ends.
            self._tail[:] = [rest[-1:]]
            return
        self._held += len(rest)
        if self._held > MAX_HELD:
            self._spoil(frames)
        elif rest.rstrip().endswith(("}", DONE)) and self._attempts < MAX_ATTEMPTS:
            self._attempts += 1
            line = "".join(self._tail)
            frame = _early(line, self._data, bare=self._bare)
            if frame is not None:
                frames.append(frame)
                self._reset()
                # The rest of this line is white space; what follows it is a new frame.
                self._tail = []

    def _take_line(self, line: str, frames: list[Frame]) -> None:
        field, colon, value = line.partition(":")
        if not line.strip():
            if self._data and not self._spoilt:
                frames.append(read_data("\n".join(self._data)))
            self._reset()
        elif self._spoilt:
            return
        elif self._bare or (line.lstrip().startswith("{") and not self._data):
            self._bare = True
            self._take_data(line, frames)
        elif colon and field == "data":
            self._take_data(value.removeprefix(" "), frames)
        elif colon and field == "error":
            # llama.cpp reports an error of a running stream in a field of that name.
            frames.append(read_data(f'{{"error": {value}}}'))
        elif not colon and line.strip() == DONE:
            frames.append(Frame(done=True))

    def _take_data(self, value: str, frames: list[Frame]) -> None:
        self._data.append(value)
        self._data_size += len(value)
        self._held += len(value)
        if self._held > MAX_HELD:
            self._spoil(frames)
        elif value.rstrip().endswith(("}", DONE)) and self._attempts < MAX_ATTEMPTS:
            self._attempts += 1
            frame = _whole(value) or (_whole("\n".join(self._data)) if len(self._data) > 1 else None)
            if frame is not None:
                frames.append(frame)
                self._reset()

    def _spoil(self, frames: list[Frame]) -> None:
        """Give up on a frame that is too long: that something was put out is known, how much is not."""
        self._reset()
        self._tail = [self._tail[-1][-1:]] if self._tail else []
        self._spoilt = True
        frames.append(UNSIZED)

    def _reset(self) -> None:
        self._data = []
        self._held = self._data_size = self._attempts = 0
        self._bare = self._spoilt = False


def _early(line: str, data: list[str], *, bare: bool) -> Frame | None:
    """Return the frame that an unfinished line already holds; None where it may go on."""
    text = line.strip()
    if bare or (text.startswith("{") and not data):
        return _whole("\n".join((*data, text)))
    field, colon, value = text.partition(":")
    if not colon:
        return Frame(done=True) if text == DONE else None
    return _whole("\n".join((*data, value))) if field == "data" else None


def _whole(text: str) -> Frame | None:
    """Return the frame of a text that is a whole JSON document or the end of the stream; None for any other."""
    text = text.strip()
    if text.startswith(DONE):
        return Frame(done=True)
    if not text.startswith("{"):
        return None
    frame = read_data(text)
    # read_data() returns this very object for text that is not JSON, so the document goes on.
    return None if frame is UNSIZED else frame
