"""Everything that arrived, written to a file as it arrives: for the report at the end, and for ``--save``."""

from __future__ import annotations

import struct
import time
from base64 import b64decode
from pathlib import Path
from typing import IO, Any, Final, Protocol

import orjson
import zstandard
from google.protobuf.json_format import MessageToDict

from otel_lifecycle._live.otlp_json_body import MESSAGES, with_ids
from otel_lifecycle._live.receiver import Signal
from otel_lifecycle._table.errors import Unusable

LARGEST: Final = 512 * 2**20
"""Bytes of a file that only the report at the end needs; some millions of requests."""
FLUSH_S: Final = 1.0
"""Seconds between two flushes.  The last messages before a pause reach the file with the next one or at the end."""


class Saving(Protocol):
    """Where messages go."""

    path: Path

    def write(self, signal: Signal, message: bytes) -> None:
        """Write a message."""

    def close(self) -> None:
        """Finish the file."""


class SpooledMessages:
    """Messages as they came, with their lengths, under zstd; ``left_out`` counts those beyond the limit."""

    def __init__(self, path: Path, largest: int = LARGEST) -> None:
        self.path = path
        self.left_out = 0
        self._largest = largest
        self._file = path.open("wb")
        # The fastest level: compression runs on the event loop that also answers the exporters.
        self._packed: Any = zstandard.ZstdCompressor(level=1).stream_writer(self._file)

    def write(self, signal: Signal, message: bytes) -> None:
        """Write a message; logs are not read by any command."""
        if signal == "logs":
            return
        # Bytes that reached the file.  The compressor's buffer is not among them, so the file ends a little larger.
        if self._file.tell() > self._largest:
            self.left_out += 1
            return
        # The framing of the Collector's file exporter, so the reader needs no case of its own for it.
        self._packed.write(struct.pack(">I", len(message)) + message)

    def close(self) -> None:
        """Finish the file."""
        self._packed.close()
        self._file.close()


class JsonLines:
    """OTLP JSON, a message a line, as the Collector's file exporter writes it; zstd where the name ends in .zst."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = _opened(path)
        zstd = path.suffix == ".zst"
        self._packed: Any = zstandard.ZstdCompressor().stream_writer(self._file) if zstd else self._file
        self._zstd = zstd
        self._flushed = time.monotonic()

    def write(self, signal: Signal, message: bytes) -> None:
        """Write a message."""
        self._packed.write(json_line(signal, message))
        if time.monotonic() - self._flushed >= FLUSH_S:
            self._flush()

    def _flush(self) -> None:
        if self._zstd:
            # A block and not a frame: after a kill all blocks can be read, and the ratio does not suffer.
            self._packed.flush(zstandard.FLUSH_BLOCK)
        self._file.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        """Finish the file."""
        self._packed.close()
        self._file.close()


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("wb")
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror or error}") from error


def json_line(signal: Signal, message: bytes) -> bytes:
    """Return a message as a line of OTLP JSON."""
    # OTLP JSON allows enums as integers only.
    document = MessageToDict(MESSAGES[signal].FromString(message), use_integers_for_enums=True)
    return orjson.dumps(with_ids(document, _hex), option=orjson.OPT_APPEND_NEWLINE)


def _hex(identifier: str) -> str:
    return b64decode(identifier).hex()
