"""How a dropped handle is noticed."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from otel_lifecycle import _registry
from otel_lifecycle._request.record import Record

if TYPE_CHECKING:
    from otel_lifecycle._request.handle import Request

    Reference = weakref.ref[Request]
else:
    Reference = weakref.ref


class HandleRef(Reference):
    """A weak reference to a handle that knows the record, for its callback."""

    __slots__ = ("record",)

    record: Record | None


def _dropped(reference: HandleRef) -> None:
    """Append the record for the next housekeeping, and nothing else: this can run inside a garbage collection."""
    record, reference.record = reference.record, None
    if record is not None and (record.status is None or record.late_at or record.late):
        _registry.dropped.append(record)


def refer_to(handle: Request) -> HandleRef:
    """Return a weak reference to a handle, which tells the registry when the handle is gone."""
    reference = HandleRef(handle, _dropped)
    reference.record = handle._record
    return reference
