"""The conditions a request ran under: what may be given, what it must be, and the attribute it becomes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from otel_lifecycle import semconv
from otel_lifecycle._core.text import clean, shown
from otel_lifecycle._core.values import seconds, whole
from otel_lifecycle.errors import ConfigurationError, InvalidValue

if TYPE_CHECKING:
    from otel_lifecycle._request.record import Record

TEXTS: Final = {
    "model": semconv.GEN_AI_REQUEST_MODEL,
    "operation": semconv.GEN_AI_OPERATION_NAME,
    "provider": semconv.GEN_AI_PROVIDER_NAME,
    "request_id": semconv.REQUEST_ID,
    "dtype": semconv.MODEL_DTYPE,
    "backend": semconv.BACKEND_NAME,
    "backend_version": semconv.BACKEND_VERSION,
    "revision": semconv.MODEL_REVISION,
    "cache_policy": semconv.CACHE_POLICY,
    "workload": semconv.WORKLOAD,
    "role": semconv.ROLE,
    "traffic": semconv.TRAFFIC,
}
WHOLES: Final = {
    "max_tokens": semconv.GEN_AI_REQUEST_MAX_TOKENS,
    "batch_size": semconv.BATCH_SIZE,
    "concurrency": semconv.CONCURRENCY,
    "attempt": semconv.REQUEST_ATTEMPT,
}
FLAGS: Final = {"stream": semconv.GEN_AI_REQUEST_STREAM}
USAGE: Final = ("input_tokens", "output_tokens", "cached_tokens")
MAX_CHOICES: Final = 128
LABELS: Final = ("operation", "provider", "model", "traffic", "role")
NAMES: Final = (*TEXTS, *WHOLES, *FLAGS, *USAGE, "deadline")
"""Every name that ``request()`` and ``set()`` take as a condition."""


@dataclass(slots=True, kw_only=True)
class RequestLabels:
    """What the metrics of a request are labelled with; ``set()`` may still change it."""

    operation: str = "chat"
    provider: str | None = None
    model: str | None = None
    traffic: str = "live"
    role: str = "whole"


def read_text(name: str, value: object) -> str:
    """Return a string condition, cleaned; InvalidValue for anything else, and for an empty one."""
    if name == "request_id" and isinstance(value, (int, UUID)) and not isinstance(value, bool):
        value = str(value)
    text = clean(value) if isinstance(value, str) else ""
    if not text:
        raise InvalidValue(f"{name} is a {type(value).__name__}; it must be a string that is not empty", event=name)
    return text


def read_flag(name: str, value: object) -> bool:
    """Return a yes-or-no condition; InvalidValue for anything else."""
    if isinstance(value, bool):
        return value
    raise InvalidValue(f"{name} is a {type(value).__name__}; it must be True or False", event=name)


def read_whole(name: str, value: object) -> int:
    """Return a count; InvalidValue unless it is a whole number from 0 below 2**63."""
    count = whole(value)
    if count is None:
        raise InvalidValue(f"{name} is {shown(value)}; it must be a whole number from 0", event=name)
    return count


def read_deadline(value: object) -> float:
    """Return seconds after arrival; InvalidValue unless positive and finite."""
    deadline = seconds(value)
    if deadline is not None and deadline > 0:
        return deadline
    raise InvalidValue(f"the deadline is {shown(value)}; it must be a positive number of seconds", event="deadline")


def read_condition(name: str, value: object) -> tuple[str, Any]:
    """Return the attribute a condition becomes and its value; InvalidValue for what cannot be."""
    if name in TEXTS:
        return TEXTS[name], read_text(name, value)
    if name in WHOLES:
        return WHOLES[name], read_whole(name, value)
    if name in FLAGS:
        return FLAGS[name], read_flag(name, value)
    raise InvalidValue(f"no condition {name[:80]!r}; there are {', '.join(NAMES)}", event=clean(name))


def check_role(role: object) -> str:
    """Return the role; ConfigurationError unless it is one there is."""
    if role in semconv.ROLES:
        return str(role)
    raise ConfigurationError(f"no role {role!r:.80}; the roles are {', '.join(semconv.ROLES)}")


def check_names(conditions: Iterable[str]) -> None:
    """ConfigurationError, with the names there are, for a condition that does not exist."""
    unknown = [name for name in conditions if name not in NAMES]
    if unknown:
        raise ConfigurationError(f"no condition {unknown[0]!r:.80}; there are {', '.join(NAMES)}")


USUAL: Final = {"role": "whole", "traffic": "live"}
"""What every request is unless somebody says otherwise; it is not worth an attribute."""


def given(conditions: Mapping[str, object]) -> dict[str, object]:
    """Return the conditions that were given: None is unset, never a value."""
    return {name: value for name, value in conditions.items() if value is not None}


def apply(record: Record, values: Mapping[str, object]) -> None:
    """Set conditions on a request that is open; what cannot be is an ``invalid_value`` violation and not set."""
    with record.lock:
        if record.status is not None:
            record.told_after_end("set")
            return
        for name, value in values.items():
            try:
                _apply_one(record, name, value)
            except InvalidValue as error:
                record.violate(error)
            except Exception as error:  # noqa: BLE001  # a value whose own methods raise
                record.violate(InvalidValue(f"{name} raised {type(error).__name__}", event=name))


def _apply_one(record: Record, name: str, value: object) -> None:
    if name in USAGE:
        record.usage[name] = read_whole(name, value)
    elif name == "deadline":
        record.deadline = read_deadline(value)
    elif name == "role" and value not in semconv.ROLES:
        raise InvalidValue(f"no role {shown(value)}; the roles are {', '.join(semconv.ROLES)}", event="role")
    else:
        attribute, read = read_condition(name, value)
        if name in LABELS:
            setattr(record.labels, name, read)
        record.span.set_attribute(attribute, read)
        if name in ("model", "operation"):
            record.span.update_name(record.source.span_name(record.labels.operation, record.labels.model))


def apply_response(record: Record, response_id: object, model: object, finish_reasons: object) -> None:
    """Set what the response says of itself."""
    with record.lock:
        if record.status is not None:
            record.told_after_end("response")
            return
        try:
            if response_id is not None:
                record.span.set_attribute(semconv.GEN_AI_RESPONSE_ID, read_text("id", response_id))
            if model is not None:
                record.span.set_attribute(semconv.GEN_AI_RESPONSE_MODEL, read_text("model", model))
            if finish_reasons is not None:
                record.span.set_attribute(semconv.GEN_AI_RESPONSE_FINISH_REASONS, _reasons(finish_reasons))
        except InvalidValue as error:
            record.violate(error)
        except Exception as error:  # noqa: BLE001  # an iterable that raises
            record.violate(InvalidValue(f"finish_reasons raised {type(error).__name__}", event="finish_reasons"))


def _reasons(finish_reasons: object) -> list[str]:
    if isinstance(finish_reasons, str) or not isinstance(finish_reasons, Iterable):
        raise InvalidValue("finish_reasons is an iterable of strings, one for each choice", event="finish_reasons")
    return [read_text("finish_reasons", reason) for reason in itertools.islice(finish_reasons, MAX_CHOICES)]
