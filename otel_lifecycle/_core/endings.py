"""How an exception, a reason or an HTTP status ends a request, by the one table in ``ending_rows``.

The classes of an exception are tried along its MRO, so the nearest class decides, as with ``except``.  An exception
group counts as its leaves: if all end a request alike, that is the end, else it failed by ``ExceptionGroup``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from otel_lifecycle import semconv
from otel_lifecycle._core.ending_rows import FINISH_REASONS, LEFT, ROWS, STATUSES, EndingRow, Terminal, failing
from otel_lifecycle._core.exceptions_read import (
    class_name,
    error_type,
    leaves,
    lineage,
    module_name,
    read_status,
    status_of,
)
from otel_lifecycle._core.text import is_identifier, shown
from otel_lifecycle.errors import ConfigurationError

__all__ = [
    "COMPLETE",
    "ENDINGS",
    "EndingTable",
    "Terminal",
    "cancellation",
    "error_type",
    "failure",
    "of_finish_reason",
    "of_status",
    "past",
    "read_status",
    "reason_of",
    "timeout",
]

TOLERANCE_NS: Final = 10_000_000
TOLERANCE_SHARE: Final = 0.01
"""A server starts its timer before our clock reads arrival; its cancellation may come this early, whichever is more."""


COMPLETE: Final = Terminal("complete")
SEVERAL: Final = "ExceptionGroup"
"""The error type of a group whose members do not end a request alike."""


def of_status(status: int) -> Terminal:
    """Return how a response of this status ends its request.

    Below 300 it is answered.  A redirect is neither answered here nor failed: a cancel without a reason.
    """
    if status < 300:
        return COMPLETE
    if status < 400:
        return Terminal("cancel")
    return STATUSES.get(status) or Terminal("fail", error_type=str(status))


def past(elapsed_ns: int, deadline_s: float | None) -> bool:
    """Return whether the deadline has come, less a tolerance of 10 ms or 1 %, whichever is more."""
    if deadline_s is None:
        return False
    deadline_ns = deadline_s * 1e9
    return elapsed_ns >= deadline_ns - max(TOLERANCE_NS, TOLERANCE_SHARE * deadline_ns)


def reason_of(reason: object) -> str | None:
    """Return a reason of the closed list; anything else that was given is ``_OTHER``."""
    if reason is None:
        return None
    text = str.__str__(reason) if issubclass(type(reason), str) else None
    return text if text in semconv.REASONS else semconv.OTHER


def timeout(reason: object = None) -> Terminal:
    """Return the ending of ``timeout(reason)``."""
    return Terminal("timeout", reason=reason_of(reason), error_type="timeout")


def cancellation(reason: object = None) -> Terminal:
    """Return the ending of ``cancel(reason)``."""
    return Terminal("cancel", reason=reason_of(reason))


def failure(error: object = None, table: EndingTable | None = None) -> Terminal:
    """Return the ending of ``fail(error)``: an exception, its class, a reason, or an error type.

    A string that is neither a reason nor an identifier is ``_OTHER``: no free text becomes a label.  The server has
    said that it failed, so of an exception only the reason is taken from the table, never another event.
    """
    if error is None:
        return Terminal("fail", error_type=semconv.OTHER)
    # Not isinstance(): it reads __class__ of an object that is not an instance, and that may be a property that raises.
    kind = type(error)
    if issubclass(kind, BaseException):
        return _failure_by(error, table or ENDINGS)  # type: ignore[arg-type]  # an exception by the line above
    if issubclass(kind, type) and BaseException in lineage(error):  # type: ignore[arg-type]  # a class
        return Terminal("fail", error_type=error_type(error))  # type: ignore[arg-type]  # of an exception
    text = str.__str__(error) if issubclass(kind, str) else ""
    if text in semconv.REASONS:
        return failing(text)
    if is_identifier(text):
        return Terminal("fail", error_type=text)
    return Terminal("fail", reason=semconv.OTHER, error_type=semconv.OTHER)


def of_finish_reason(reason: object, error: object = None, table: EndingTable | None = None) -> Terminal:
    """Return the end that an engine's finish reason stands for; ``error``: what is known of a failure.

    A word that is not in :data:`FINISH_REASONS`, and None, is a normal completion.
    """
    word = str.__str__(reason).lower() if issubclass(type(reason), str) else ""
    # Each engine has its own words for a normal stop (stop, eos, length, end_turn). Those for a bad end are few, so
    # only these are listed.
    found = FINISH_REASONS.get(word, COMPLETE)
    return failure(error, table) if found.event == "fail" and error is not None else found


def _failure_by(error: BaseException, table: EndingTable) -> Terminal:
    found = table.of_exception(error, inside=True)
    if found.event == "fail":
        return found
    # The table ends this one otherwise, as a cancel or a timeout. The server said that it failed, so only the type is
    # taken.
    types = {error_type(leaf) for leaf in leaves(error) or ()}
    return Terminal("fail", error_type=types.pop() if len(types) == 1 else SEVERAL)


GIVEN_UP: Final = Terminal("cancel", decided=True)
"""How an attempt ends that is given up for another one."""


class EndingTable:
    """The rows by class name, ready for look-up.  Immutable: :meth:`extended` gives another one."""

    __slots__ = ("_by_name", "rows")

    def __init__(self, rows: Iterable[EndingRow] = ROWS) -> None:
        self.rows: Final = tuple(rows)
        self._by_name: dict[str, list[tuple[str, EndingRow]]] = {}
        for row in self.rows:
            module, _, name = row.name.rpartition(".")
            self._by_name.setdefault(name, []).append((module, row))
        for candidates in self._by_name.values():
            # The most exact module first; the sort is stable, so an added row goes before a built-in one like it.
            candidates.sort(key=lambda candidate: -len(candidate[0]))

    def extended(self, endings: Mapping[str, str]) -> EndingTable:
        """Return a table with rows of the server's own before these: ``{"pkg.Class": "cancel:client_disconnected"}``.

        A value is ``cancel``, ``timeout``, ``fail`` or ``complete``, and behind a colon a reason of the closed list.
        Raises ConfigurationError for anything else.
        """
        if not isinstance(endings, Mapping):
            raise ConfigurationError(f"endings is {shown(endings)}; it must map class names to how they end a request")
        return EndingTable((*(_read_row(name, text) for name, text in endings.items()), *self.rows))

    def of_exception(
        self,
        error: BaseException,
        *,
        past_deadline: bool = False,
        client_left: bool = False,
        inside: bool = False,
    ) -> Terminal:
        """Return how an exception that leaves the block ends its request.

        ``past_deadline``: see :func:`past`; a cancellation is then the deadline's doing, because ``asyncio.timeout``
        delivers it as CancelledError inside the coroutine.  ``client_left``: ``client_disconnected()`` was noted.
        ``inside``: it passed through ``stream()`` or ``stage()``, so a broken connection is not the client's.
        """
        found: Terminal | None = None
        for leaf in leaves(error) or ():
            ending = self._of_leaf(leaf, past_deadline=past_deadline, client_left=client_left, inside=inside)
            # Compared by what they end in, not by type: a TimeoutError beside a ReadTimeout is a timeout.
            if found is not None and ending != found:
                found = None
                break
            found = ending
        return found or Terminal("fail", error_type=SEVERAL)

    def _of_leaf(self, error: BaseException, *, past_deadline: bool, client_left: bool, inside: bool) -> Terminal:
        row = self._row_of(type(error))
        meaning = "fail" if row is None else row.meaning
        reason = None if row is None else row.reason
        if meaning == "connection":
            # A connection that broke inside `stream()` is the engine's, unless the client is known to have left.
            meaning = "fail" if inside and not client_left else "cancel"
            reason = None if meaning == "fail" else LEFT
        elif meaning == "cancellation":
            meaning = "timeout" if past_deadline else "cancel"
            reason = "deadline" if past_deadline else LEFT if client_left else None
        elif meaning == "timeout" and past_deadline:
            reason = "deadline"
        elif meaning == "status":
            status = status_of(error)
            if status is not None:
                return of_status(status)
            meaning = "fail"
        return _ending(meaning, reason, error)

    def _row_of(self, kind: type) -> EndingRow | None:
        for base in lineage(kind):
            candidates = self._by_name.get(class_name(base))
            if candidates is not None:
                # Frameworks move classes to submodules between versions, so a row covers its module and everything
                # below it.
                module = module_name(base)
                for prefix, row in candidates:
                    if not prefix or module == prefix or module.startswith(prefix + "."):
                        return row
        return None


def _ending(event: str, reason: str | None, error: BaseException) -> Terminal:
    if event == "fail":
        # The reason comes first: it is of a closed list and groups the exception classes of all libraries.
        return Terminal("fail", reason=reason, error_type=reason or error_type(error))
    if event == "timeout":
        return timeout(reason)
    if event == "attempt":
        return GIVEN_UP
    return Terminal("cancel", reason=reason) if event == "cancel" else COMPLETE


def _read_row(name: object, text: object) -> EndingRow:
    if not isinstance(name, str) or not is_identifier(name) or not all(name.split(".")):
        raise ConfigurationError(f"endings has {shown(name)}; it must be the name of a class, such as 'pkg.Class'")
    event, colon, reason = text.partition(":") if isinstance(text, str) else ("", "", "")
    if event not in ("cancel", "timeout", "fail", "complete") or (colon and reason not in semconv.REASONS):
        raise ConfigurationError(
            f"endings[{name!r}] is {shown(text)}; it must be cancel, timeout, fail or complete, and behind a colon one "
            f"of {', '.join(sorted(semconv.REASONS))}"
        )
    return EndingRow(name=name, meaning=event, reason=reason or None)  # type: ignore[arg-type]  # checked above


ENDINGS: Final = EndingTable()
"""The built-in table."""
