"""Access to the receiver and the page.

On the loopback the danger is another web page in the same browser: it can make its own name resolve to 127.0.0.1 and
then read from here (DNS rebinding).  The Host header still has that name, so only known names are answered.  A page
elsewhere that posts telemetry is refused by its Origin.  Beyond the loopback, everyone needs the token.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
COOKIE: Final = "otel_lifecycle_token"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRule:
    """The rule of one server; without a token only the loopback is served."""

    host: str
    token: str | None = None
    names: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def of(cls, host: str, token: str | None) -> AccessRule:
        """Return the guard of a server that listens on a host."""
        names = {*LOOPBACK_NAMES, host.lower()}
        # Without a token only the loopback is served, where no other name is legitimate.
        if token is not None:
            names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        return cls(host=host, token=token, names=frozenset(names))

    def knows(self, host_header: str) -> bool:
        """Return whether a Host header names this server."""
        name = _name_of(host_header)
        # DNS rebinding needs a name: an address in the Host header was typed by the user.
        return name in self.names or (self.token is not None and _is_address(name))

    def same_origin(self, origin: str | None, host_header: str) -> bool:
        """Return whether a request comes from this server's own page, or from no page at all."""
        # Exporters send no Origin.  Browsers add it to every request of another site's script.
        return origin is None or urlsplit(origin).netloc.lower() == host_header.lower()

    def admits(self, given: str | None) -> bool:
        """Return whether a token is the right one, or none is needed."""
        # In constant time, and as bytes: compare_digest refuses text beyond ASCII.
        return self.token is None or (given is not None and hmac.compare_digest(given.encode(), self.token.encode()))


def bearer(headers: Mapping[str, str]) -> str | None:
    """Return the token of an Authorization header."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token else None


def _name_of(host_header: str) -> str:
    try:
        return (urlsplit(f"//{host_header}").hostname or "").lower()
    # For example a bracket that is not closed; no rule knows the empty name.
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
