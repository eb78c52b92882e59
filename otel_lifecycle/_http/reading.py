"""Reading what servers, apps and clients pass through a middleware.

How it works.  A scope, a message or an environ is a mapping by its protocol, and may be anything in fact: a proxy, a
value of the wrong type, a subclass whose methods raise.  Each function here returns a plain value of the type that the
protocol says, or an empty one; none of them raises.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from otel_lifecycle._core.text import is_a

MAX_HEADERS: Final = 4096
"""Headers looked at; servers refuse more than a few hundred."""

_BYTES: Final = (bytes, bytearray, memoryview)


def value_in(mapping: Any, name: str) -> Any:
    """Return a value as it is; None where there is none."""
    try:
        return mapping.get(name)
    except Exception:  # noqa: BLE001  # it is no mapping, or its methods raise
        return None


def text_in(mapping: Any, name: str) -> str:
    """Return a text; an empty one where there is none."""
    return plain_text(value_in(mapping, name))


def plain_text(value: object) -> str:
    """Return a text as a plain ``str``; an empty one for anything else."""
    if type(value) is str:
        return value
    return str.__str__(value) if is_a(value, str) else ""


def flag_in(mapping: Any, name: str) -> bool:
    """Return whether a value is true; False where there is none."""
    value = value_in(mapping, name)
    if type(value) is bool:
        return value
    try:
        return bool(value)
    except Exception:  # noqa: BLE001  # its own __bool__
        return False


def bytes_in(mapping: Any, name: str) -> bytes:
    """Return the bytes of a body; none where it has another type."""
    return plain_bytes(value_in(mapping, name))


def plain_bytes(value: object) -> bytes:
    """Return bytes as plain ``bytes``; none for anything else."""
    if type(value) is bytes:
        return value
    # bytes() of a number would be as many zeros.
    return bytes(memoryview(value)) if is_a(value, _BYTES) else b""  # type: ignore[arg-type]  # bytes by this line


def headers_in(mapping: Any) -> list[tuple[bytes, bytes]]:
    """Return the headers of a scope or a message; one that is no pair of bytes or text is left out.

    An iterable that can be read only once is replaced by a list: the next reader needs it too.
    """
    given = value_in(mapping, "headers")
    if type(given) not in (list, tuple):
        given = _materialised(mapping, given)
    return [pair for one in given[:MAX_HEADERS] if (pair := _header(one)) is not None]


def _materialised(mapping: Any, given: Any) -> list[Any]:
    if given is None or not is_a(given, Iterable):
        return []
    try:
        read = list(islice(given, MAX_HEADERS))
        mapping["headers"] = read
    except Exception:  # noqa: BLE001  # the server's own iterable raises, or the mapping takes nothing
        return []
    return read


def _header(pair: Any) -> tuple[bytes, bytes] | None:
    if type(pair) not in (tuple, list) or len(pair) != 2:
        return None
    name, value = pair
    if type(name) is bytes and type(value) is bytes:
        return name, value
    name, value = (_encoded(part) for part in pair)
    return None if name is None or value is None else (name, value)


def _encoded(part: object) -> bytes | None:
    if is_a(part, str):
        # On the wire a header is Latin-1; what does not fit there was never sent.
        return plain_text(part).encode("latin-1", "replace")
    return plain_bytes(part) if is_a(part, _BYTES) else None


def served_at(host: object, port: object) -> dict[str, Any]:
    """Return the conditions that say where a request was received: what is known of address and port.

    ``host``: a name, an address, or the path of a Unix socket, which has no port.  ``port``: a number, or its digits.
    """
    address, number = plain_text(host), -1
    if type(port) is int:
        number = port
    elif (digits := plain_text(port)) and len(digits) <= 5 and digits.isdecimal():
        number = int(digits)
    known: dict[str, Any] = {"server_address": address} if address else {}
    if address and 0 < number < 65536:
        known["server_port"] = number
    return known
