"""From bytes to messages: what is compressed is unpacked, what is framed is cut.

| bytes | who writes them |
|---|---|
| a JSON document a line | the Collector's file exporter, by default |
| one JSON document, or an array of them, printed prettily or not | people, ``jq``, Jaeger's page |
| a 4-byte big-endian length before each message (JSON or protobuf, plain or zstd) | that exporter with proto or zstd |
| a varint length before each protobuf message | the OTLP file specification |
| one bare protobuf message | a saved request body |

Any of them may be within gzip or zstd.  At most one message is held at a time.
"""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from collections.abc import Iterator
from typing import IO, Any, Final, Literal, TypeAlias

import zstandard

Stream: TypeAlias = "io.BufferedReader[Any]"
Message: TypeAlias = tuple[Literal["json", "proto"], bytes]

MAX_MESSAGE: Final = 256 * 2**20
"""Bytes of the largest message that is read; a larger one is not a batch of telemetry."""

CHUNK: Final = 2**18
PACKED_CHUNK: Final = 2**13
"""Compressed bytes unpacked at a time: zstd makes at most some 2**15 of one, so never more than a message may have."""

GZIP: Final = b"\x1f\x8b"
ZSTD: Final = b"\x28\xb5\x2f\xfd"
BOM: Final = b"\xef\xbb\xbf"
BROKEN: Final = (EOFError, zlib.error, zstandard.ZstdError, gzip.BadGzipFile)
"""What a compressed file raises where it was cut short or damaged."""

# All OTLP batches (traces, metrics, logs) have the list of their resources as field 1.
_FIRST_FIELD: Final = 0x0A
"""Tag of field 1, length-delimited: how every OTLP batch begins."""


class CutShort(Exception):
    """The bytes end, or stop making sense, within a message; ``telemetry``: what there is of it looks like one."""

    def __init__(self, reason: str, *, telemetry: bool = False) -> None:
        super().__init__(reason)
        self.telemetry = telemetry


def unpacked(stream: Stream) -> Stream:
    """Return the stream, or what is within it where it is compressed as a whole."""
    # By content and not by name: files are renamed, and a pipe has no name.
    head = stream.peek(4)[:4]
    if head.startswith(GZIP):
        return io.BufferedReader(gzip.GzipFile(fileobj=stream))
    if head == ZSTD:
        return io.BufferedReader(_Zstd(stream), CHUNK)
    return stream


class _Zstd(io.RawIOBase):
    """What is within the frames of a zstd stream; EOFError where it ends within one, as gzip's reader does.

    The library's own reader takes a cut for an end.
    """

    def __init__(self, packed: Stream) -> None:
        self._packed = packed
        self._decompressor = zstandard.ZstdDecompressor()
        self._frame = self._decompressor.decompressobj()
        self._begun = False
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            if not self._more():
                return 0
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _more(self) -> bool:
        """Unpack some more, frame after frame; False at the end."""
        chunk = self._frame.unused_data
        # A writer that appends begins a new frame, so the end of a frame is not the end of the file.
        if self._frame.eof:
            self._frame, self._begun = self._decompressor.decompressobj(), False
        chunk = chunk or self._packed.read(PACKED_CHUNK)
        if chunk:
            self._ready, self._begun = memoryview(self._frame.decompress(chunk)), True
        elif self._begun:
            raise EOFError("Compressed file ended before the end-of-stream marker was reached")
        return bool(chunk)


def messages(stream: Stream) -> Iterator[Message]:
    """Yield the messages of an uncompressed stream; CutShort or one of :data:`BROKEN` where it ends too early."""
    head = stream.peek(16)[:16]
    if not head:
        return
    if _is_text(head):
        yield from (("json", line) for line in _documents(stream))
    # Tested first: a length prefix can begin with the same bytes, and only this branch looks at the whole content.
    elif head[0] == _FIRST_FIELD and _bare(head):
        yield from _bare_or_counted(stream)
    elif _counted(head):
        yield from _length_prefixed(stream)
    else:
        yield from _varint_prefixed(stream)


def _is_text(head: bytes) -> bool:
    return head.removeprefix(BOM).lstrip()[:1] in (b"{", b"[")


def _counted(head: bytes) -> bool:
    """Whether a 4-byte length comes first: a small number, then the start of a message of some kind."""
    if len(head) < 5 or struct.unpack(">I", head[:4])[0] > MAX_MESSAGE:
        return False
    return head[4] in (_FIRST_FIELD, ord("{")) or head[4:8] == ZSTD


def _bare(head: bytes) -> bool:
    """Whether field 1 begins here: a resource (field 1), scope spans (2) or a schema URL (3) comes first in it."""
    at = 1
    while at < len(head) and head[at] & 0x80:
        at += 1
    return at + 1 < len(head) and head[at + 1] in (0x0A, 0x12, 0x1A)


def _bare_or_counted(stream: Stream) -> Iterator[Message]:
    """Yield the one bare message, or those of a file whose first length happens to begin as a bare message does.

    A message of 16 KiB to 2 MiB begins 0A xx xx xx 0A, which is a length of 160 MiB and the start of a message, too.
    """
    # A bare message has no length of its own, so only all of it tells whether its batches fill it exactly.
    content = stream.read(MAX_MESSAGE)
    if not _whole(content) and _counted(content[:16]) and struct.unpack(">I", content[:4])[0] <= len(content) - 4:
        yield from _length_prefixed(io.BufferedReader(_Rest(content, stream)))
    else:
        yield "proto", content


def _whole(content: bytes) -> bool:
    """Whether some bytes are the batches of one message, up to the last of them."""
    at = 0
    while at < len(content) and content[at] == _FIRST_FIELD:
        try:
            size, at = _number_at(content, at + 1)
        except IndexError:
            return False
        at += size
    return at == len(content)


def _number_at(content: bytes, at: int) -> tuple[int, int]:
    """Return the varint at a place, and the place behind it."""
    number = shift = 0
    while content[at] & 0x80:
        number |= (content[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return number | content[at] << shift, at + 1


class _Rest(io.RawIOBase):
    """Bytes that were read already, and then what comes after them."""

    def __init__(self, known: bytes, rest: Stream) -> None:
        self._known = io.BytesIO(known)
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._known.readinto(buffer) or self._rest.readinto(buffer)


def _documents(stream: Stream) -> Iterator[bytes]:
    """Yield a JSON document a line, or the one document that all lines are."""
    # Editors and scripts, unlike exporters, may write a byte order mark.
    first = stream.readline(MAX_MESSAGE).removeprefix(BOM)
    stripped = first.strip()
    # A first line that cannot be a document is the beginning of one that spans lines.
    if len(stripped) < 2 or stripped.endswith((b"{", b"[", b",")):
        rest = stream.read(MAX_MESSAGE)
        if len(rest) == MAX_MESSAGE:
            raise CutShort(f"one JSON document of more than {MAX_MESSAGE >> 20} MiB; write a document a line")
        yield first + rest
        return
    while first:
        if len(first) == MAX_MESSAGE:
            raise CutShort(f"a line of more than {MAX_MESSAGE >> 20} MiB")
        if not first.isspace():
            yield first
        first = stream.readline(MAX_MESSAGE)


def _length_prefixed(stream: Stream) -> Iterator[Message]:
    unpacker = zstandard.ZstdDecompressor()
    while head := stream.read(4):
        if len(head) < 4:
            raise CutShort("the file ends within a length", telemetry=True)
        message = _exactly(stream, struct.unpack(">I", head)[0])
        if message.startswith(ZSTD):
            # Bounded, because a few compressed bytes can claim gigabytes.
            message = unpacker.stream_reader(message).read(MAX_MESSAGE)
        yield ("json" if _is_text(message[:16]) else "proto"), message


def _varint_prefixed(stream: Stream) -> Iterator[Message]:
    while (size := _varint(stream)) is not None:
        yield "proto", _exactly(stream, size)


def _varint(stream: IO[bytes]) -> int | None:
    size = shift = 0
    while byte := stream.read(1):
        size |= (byte[0] & 0x7F) << shift
        shift += 7
        if byte[0] < 0x80:
            return size
        # Five bytes hold 35 bits, more than any length below MAX_MESSAGE needs.
        if shift > 35:
            raise CutShort("no length where one should be")
    if shift:
        raise CutShort("the file ends within a length")
    return None


def _exactly(stream: IO[bytes], size: int) -> bytes:
    # Any file begins with some number, so a length is trusted only if something like OTLP follows it.
    if size > MAX_MESSAGE:
        raise CutShort(f"a message of {size} bytes, more than {MAX_MESSAGE >> 20} MiB")
    message = stream.read(size)
    if len(message) < size:
        looks = message[:1] in (b"\n", b"{") or message.startswith(ZSTD)
        raise CutShort(f"the file ends within a message, at {len(message)} of {size} bytes", telemetry=looks)
    return message
