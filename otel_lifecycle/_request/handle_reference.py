"""How a dropped handle is noticed: by a weak reference to it that knows its request.

How it works.  The callback of the reference runs when the handle is gone, and only puts the request into a deque.
Rejected: ``__del__`` on the handle.  It sees the handle alive again, and contexts need the weak reference anyway.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final, Protocol

from otel_lifecycle._assessor import RegisteredRequest
from otel_lifecycle._request.token_path import TokenPath
from otel_lifecycle._runtime import runtime

if TYPE_CHECKING:
    _Reference = weakref.ref[TokenPath]
else:
    _Reference = weakref.ref


class LeftBehind(RegisteredRequest, Protocol):
    """A request as its reference sees it."""

    @property
    def expects_more(self) -> bool:
        """Whether it is open, or something came after its end that was not recorded yet."""


class HandleReference(_Reference):
    """A weak reference to a handle, for contexts and for the token path.

    It holds the request until the handle is gone, and the request holds it: a cycle that the callback breaks, so that a
    request is freed with its handle and never waits for the cyclic collector.
    """

    __slots__ = ("request",)

    request: LeftBehind | None


def _dropped(reference: HandleReference) -> None:
    """Append the request for the next housekeeping, and nothing else: this can run inside a garbage collection."""
    # This breaks the cycle of the request and its reference.
    request, reference.request = reference.request, None
    if request is not None and request.expects_more:
        runtime().dropped.append(request)


def refer_to(handle: TokenPath, request: LeftBehind) -> HandleReference:
    """Return a weak reference to a handle, which tells the runtime when the handle is gone."""
    reference = HandleReference(handle, _dropped)
    reference.request = request
    return reference


class _Handle(TokenPath):
    """Stands for a handle that is gone."""

    __slots__ = ()


NOBODY: Final = HandleReference(_Handle())
"""A reference to a handle that is gone."""
