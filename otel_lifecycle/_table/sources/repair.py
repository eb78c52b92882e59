"""Protobuf messages with text that is not UTF-8: the parser refuses the whole batch for one such value.

The repair parses the message with a copy of its schema in which every text is bytes, replaces what is not UTF-8, and
encodes it again.  It runs only for batches that the parser refused.
"""

from __future__ import annotations

import functools
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor, FileDescriptor
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.trace.v1 import trace_pb2


def repaired(name: str, message: bytes) -> bytes | None:
    """Return a batch of the kind with this full name with valid texts; None if something else is wrong with it."""
    kind, texts = _tolerant(name)
    try:
        found = kind.FromString(message)
    except DecodeError:
        return None
    return bytes(found.SerializeToString()) if _mend(found, texts) else None


@functools.cache
def _tolerant(name: str) -> tuple[Any, frozenset[str]]:
    """Return a message class whose texts are bytes, and the full names of these fields."""
    # A pool of its own: the default pool refuses a second file of the same name.
    pool, texts = descriptor_pool.DescriptorPool(), set[str]()
    done: set[str] = set()
    for file in (trace_pb2.DESCRIPTOR, metrics_pb2.DESCRIPTOR):
        _copy(file, pool, texts, done)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name)), frozenset(texts)


def _copy(file: FileDescriptor, pool: Any, texts: set[str], done: set[str]) -> None:
    if file.name in done:
        return
    done.add(file.name)
    for needed in file.dependencies:
        _copy(needed, pool, texts, done)
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    for kind in proto.message_type:
        _as_bytes(kind, f"{proto.package}.{kind.name}", texts)
    pool.Add(proto)


def _as_bytes(kind: Any, name: str, texts: set[str]) -> None:
    for field in kind.field:
        if field.type == FieldDescriptor.TYPE_STRING:
            field.type = FieldDescriptor.TYPE_BYTES
            texts.add(f"{name}.{field.name}")
    for nested in kind.nested_type:
        _as_bytes(nested, f"{name}.{nested.name}", texts)


def _mend(message: Message, texts: frozenset[str]) -> bool:
    """Replace what is not UTF-8 in the texts of a message; return whether there was any."""
    changed = False
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if _repeated(value) else (value,):
                changed |= _mend(inner, texts)
        # Repeated texts stay as they are: nothing here reads one.
        elif field.full_name in texts and not _repeated(value) and (valid := _valid(value)) != value:
            setattr(message, field.name, valid)
            changed = True
    return changed


def _repeated(value: Any) -> bool:
    return not isinstance(value, (bytes, Message))


def _valid(text: bytes) -> bytes:
    return text.decode("utf-8", "replace").encode()
