"""OTLP JSON in a file, one export a line, as the Collector's file exporter writes it.

A line is written with one call and handed to the kernel at once: a process that is killed leaves at most its last line
torn.  Each process has a file of its own.  ``{pid}`` in the name stands for its number; without it, a process that
finds the file locked by another (a fork, a second worker) adds its number to the name.
"""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final

from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_lifecycle._log import say
from otel_lifecycle.errors import ConfigurationError

KEPT: Final = 5
"""Older files that are kept beside the current one; the oldest goes."""

_IDS: Final = frozenset({"traceId", "spanId", "parentSpanId"})


class OtlpFile:
    """The file of this process.  ``pattern``: its path; ``max_bytes``: from which size it is put aside.

    Raises ConfigurationError where the file cannot be opened.
    """

    def __init__(self, pattern: str, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._users = 0
        self._lock = threading.Lock()
        self.path = Path(pattern.replace("{pid}", str(os.getpid())))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._open()
        except OSError as error:
            raise ConfigurationError(f"the file {str(self.path)!r:.200} cannot be written: {error}") from error

    def _open(self) -> IO[bytes]:
        # Unbuffered: what is still in a buffer of Python's is lost when the process is killed.
        file = self.path.open("ab", buffering=0)
        if _locked(file):
            return file
        file.close()
        self.path = self.path.with_name(f"{self.path.stem}-{os.getpid()}{self.path.suffix}")
        file = self.path.open("ab", buffering=0)
        # No other process has this number in its name.  If even this lock fails, writing goes on without it.
        _locked(file)
        return file

    def write(self, document: dict[str, Any]) -> bool:
        """Append a document as one line; return whether that worked."""
        # Encoded outside the lock: it is the slow part.
        line = json.dumps(_with_hex_ids(document), separators=(",", ":")).encode() + b"\n"
        try:
            with self._lock:
                # A document above the limit still goes into a file of its own; an empty file is never put aside.
                if self._file.tell() and self._file.tell() + len(line) > self._max_bytes:
                    self._rotate()
                self._file.write(line)
        except (OSError, ValueError) as error:  # A full disk; ValueError: closed.
            say("otlp_file", f"{self.path.name} cannot be written; what it should hold is lost", error=error)
            return False
        return True

    def _rotate(self) -> None:
        self._file.close()
        # From the oldest to the newest: no file may overwrite one that has still to move.
        for number in range(KEPT - 1, 0, -1):
            older = self._aside(number)
            if older.exists():
                older.replace(self._aside(number + 1))
        self.path.replace(self._aside(1))
        self._file = self._open()

    def _aside(self, number: int) -> Path:
        # The number goes before the ending, so that *.jsonl in a folder finds all of them.
        return self.path.with_name(f"{self.path.stem}.{number}{self.path.suffix}")

    def use(self) -> None:
        """Note an exporter that writes here."""
        # Without the lock: exporters are made by one thread, before any of them can shut down.
        self._users += 1

    def release(self) -> None:
        """Close the file once the last exporter that writes here has shut down."""
        with self._lock:
            self._users -= 1
            if self._users <= 0:
                self._file.close()


def _locked(file: IO[bytes]) -> bool:
    """Lock a file for this process; return False where another holds it.

    Windows has no flock: two processes need ``{pid}`` in the name there.
    """
    try:
        import fcntl
    except ImportError:  # pragma: no cover
        return True
    try:
        # flock, not lockf: a POSIX lock is lost as soon as the process closes any other handle of the file.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _with_hex_ids(value: Any) -> Any:
    """Return a document with its ids in hexadecimal: OTLP JSON has them so, protobuf's JSON in base64."""
    if isinstance(value, dict):
        return {
            key: base64.b64decode(item).hex() if key in _IDS and isinstance(item, str) else _with_hex_ids(item)
            for key, item in value.items()
        }
    return [_with_hex_ids(item) for item in value] if isinstance(value, list) else value


class FileSpanExporter(SpanExporter):
    """Writes spans to the file of this process."""

    def __init__(self, file: OtlpFile) -> None:
        self._file = file
        file.use()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write a batch as one line."""
        # OTLP JSON requires integers for enums.
        document = MessageToDict(encode_spans(spans), use_integers_for_enums=True)
        return SpanExportResult.SUCCESS if self._file.write(document) else SpanExportResult.FAILURE

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Return True: nothing is held back."""
        return True

    def shutdown(self) -> None:
        """Write no more."""
        self._file.release()


class FileMetricExporter(MetricExporter):
    """Writes metrics to the file of this process."""

    def __init__(self, file: OtlpFile) -> None:
        super().__init__()
        self._file = file
        file.use()

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        """Write one collection as one line."""
        document = MessageToDict(encode_metrics(metrics_data), use_integers_for_enums=True)
        return MetricExportResult.SUCCESS if self._file.write(document) else MetricExportResult.FAILURE

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Return True: nothing is held back."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Write no more."""
        self._file.release()
