"""The conditions a request ran under, as one table: what may be given, how it is read, and where it goes.

A row says everything about a condition.  ``request()``, ``set()``, ``usage()``, ``startup()``, ``traced`` and the
middleware all read the table; a new condition is one row, one constant in ``semconv`` and one key of
:class:`ConditionKeywords`.

Values come from outside and may be anything: their own methods may raise.  Reading one gives the value or InvalidValue,
and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import compress, islice, repeat
from operator import is_not
from typing import Any, Final, TypedDict
from uuid import UUID

from otel_lifecycle import semconv
from otel_lifecycle._core.labels import RequestLabels
from otel_lifecycle._core.text import clean, is_a, is_identifier, shown
from otel_lifecycle._core.values import MAX_CHOICES, seconds, whole
from otel_lifecycle.errors import ConfigurationError, InvalidValue


class ConditionKeywords(TypedDict, total=False):
    """What a request runs under, as keywords; each may be None, which is absent.

    ``model``: what was asked for.  ``operation``: ``chat`` unless told, ``embeddings`` for pooling.  ``engine``: what
    requests compete for, the model by default.  ``provider``, ``backend``, ``backend_version``, ``revision``,
    ``dtype``, ``cache_policy``: who serves it, and how.  ``request_id``: a string, an integer or a UUID.  ``tenant``:
    whose it is; never a metric label.  ``input_tokens``, ``output_tokens``, ``cached_tokens``, ``max_tokens``,
    ``batch_size``, ``concurrency``, ``attempt``: counts from 0.  ``stream``: whether the answer is streamed.
    ``deadline``: seconds after arrival from which a cancellation is a timeout.  ``role``: ``whole``, or ``prefill`` or
    ``decode`` for a part of a disaggregated request, which feeds stage durations only.  ``traffic``: ``live``, or a
    word that keeps the metrics of other traffic apart, such as ``warmup``.  ``workload``: a name for the kind of load.
    ``server_address``, ``server_port``: where the server received it; the middlewares know that by themselves.
    ``unit``: what outputs are counted in where they are not tokens, such as ``audio_s``, ``step`` or ``image``; marks
    of tokens then mark outputs, and ``n`` is how much one is in that unit.
    """

    model: str | None
    operation: str | None
    engine: str | None
    provider: str | None
    request_id: str | int | UUID | None
    input_tokens: int | None
    output_tokens: int | None
    max_tokens: int | None
    stream: bool | None
    cached_tokens: int | None
    batch_size: int | None
    concurrency: int | None
    dtype: str | None
    backend: str | None
    backend_version: str | None
    revision: str | None
    cache_policy: str | None
    attempt: int | None
    role: str
    traffic: str
    workload: str | None
    tenant: str | None
    server_address: str | None
    server_port: int | None
    unit: str | None
    deadline: float | None


def read_text(name: str, value: object) -> str:
    """Return a string condition, cleaned; InvalidValue for anything else, and for an empty one."""
    text = clean(value) if is_a(value, str) else ""  # type: ignore[arg-type]  # text by this line
    if not text:
        raise InvalidValue(f"{name} is {shown(value)}; it must be a string that is not empty", event=name)
    return text


def read_id(name: str, value: object) -> str:
    """Return an identifier, which may be given as a number or a UUID."""
    # Up to 128 bits, as a UUID has: Python refuses to print an integer of more than 4300 digits.
    if type(value) is int and -(2**127) <= value < 2**128:
        return str(value)
    return read_text(name, str(value) if type(value) is UUID else value)


def read_flag(name: str, value: object) -> bool:
    """Return a yes-or-no condition; InvalidValue for anything else."""
    if type(value) is bool:
        return value
    raise InvalidValue(f"{name} is a {type(value).__name__}; it must be True or False", event=name)


def read_whole(name: str, value: object) -> int:
    """Return a count; InvalidValue unless it is a whole number from 0 below 2**63."""
    count = whole(value)
    if count is None:
        raise InvalidValue(f"{name} is {shown(value)}; it must be a whole number from 0", event=name)
    return count


def read_port(name: str, value: object) -> int:
    """Return a port; InvalidValue unless it is one of TCP's."""
    port = whole(value)
    if port is None or not 0 < port < 65536:
        raise InvalidValue(f"{name} is {shown(value)}; it must be a whole number from 1 to 65535", event=name)
    return port


def read_seconds(name: str, value: object) -> float:
    """Return seconds after arrival; InvalidValue unless positive and finite."""
    given = seconds(value)
    if given is not None and given > 0:
        return given
    raise InvalidValue(f"the {name} is {shown(value)}; it must be a positive number of seconds", event=name)


def read_unit(name: str, value: object) -> str:
    """Return the unit of outputs; a text that is not an identifier is ``_OTHER``, since it labels metrics."""
    text = read_text(name, value)
    return text if is_identifier(text) else semconv.OTHER


def read_role(name: str, value: object) -> str:
    """Return the role; InvalidValue unless it is one there is."""
    text = str.__str__(value) if is_a(value, str) else ""
    if text in semconv.ROLES:
        return text
    raise InvalidValue(f"no role {shown(value)}; the roles are {', '.join(semconv.ROLES)}", event=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One row.

    ``attribute``: what it is called on the span; None: it is kept for the end or for judging, not written when given.
    ``label``: the field of :class:`RequestLabels` it sets.  ``usual``: a value that is not worth an attribute.
    ``usage``: a token count, which the end of the request writes.  ``server``: it is the same for all requests of a
    server, so the middleware takes it.  ``startup``: it describes a cold start, too.
    """

    name: str
    read: Callable[[str, object], Any]
    attribute: str | None = None
    label: str | None = None
    usual: object = None
    usage: bool = False
    server: bool = False
    startup: bool = False


_ROWS: Final = (
    Condition(
        name="model",
        read=read_text,
        attribute=semconv.GEN_AI_REQUEST_MODEL,
        label="model",
        server=True,
        startup=True,
    ),
    Condition(
        name="operation", read=read_text, attribute=semconv.GEN_AI_OPERATION_NAME, label="operation", server=True
    ),
    Condition(name="provider", read=read_text, attribute=semconv.GEN_AI_PROVIDER_NAME, label="provider", server=True),
    Condition(name="request_id", read=read_id, attribute=semconv.REQUEST_ID),
    Condition(name="dtype", read=read_text, attribute=semconv.MODEL_DTYPE, server=True, startup=True),
    Condition(name="backend", read=read_text, attribute=semconv.BACKEND_NAME, server=True, startup=True),
    Condition(name="backend_version", read=read_text, attribute=semconv.BACKEND_VERSION, server=True, startup=True),
    Condition(name="revision", read=read_text, attribute=semconv.MODEL_REVISION, server=True, startup=True),
    Condition(name="cache_policy", read=read_text, attribute=semconv.CACHE_POLICY, server=True),
    # A label of metrics only where it is switched on: a server may have as many tenants as it likes.
    Condition(name="tenant", read=read_text, attribute=semconv.TENANT, label="tenant"),
    Condition(name="server_address", read=read_text, attribute=semconv.SERVER_ADDRESS, server=True),
    Condition(name="server_port", read=read_port, attribute=semconv.SERVER_PORT, server=True),
    Condition(name="workload", read=read_text, attribute=semconv.WORKLOAD, server=True),
    Condition(name="role", read=read_role, attribute=semconv.ROLE, label="role", usual="whole", server=True),
    Condition(name="traffic", read=read_text, attribute=semconv.TRAFFIC, label="traffic", usual="live", server=True),
    Condition(name="unit", read=read_unit, attribute=semconv.OUTPUT_UNIT, label="unit", server=True),
    Condition(name="engine", read=read_text, attribute=semconv.ENGINE, server=True),
    Condition(name="max_tokens", read=read_whole, attribute=semconv.GEN_AI_REQUEST_MAX_TOKENS),
    Condition(name="batch_size", read=read_whole, attribute=semconv.BATCH_SIZE),
    Condition(name="concurrency", read=read_whole, attribute=semconv.CONCURRENCY),
    Condition(name="attempt", read=read_whole, attribute=semconv.REQUEST_ATTEMPT),
    Condition(name="stream", read=read_flag, attribute=semconv.GEN_AI_REQUEST_STREAM, usual=False),
    Condition(name="input_tokens", read=read_whole, usage=True),
    Condition(name="output_tokens", read=read_whole, usage=True),
    Condition(name="cached_tokens", read=read_whole, usage=True),
    Condition(name="deadline", read=read_seconds, server=True),
)
CONDITIONS: Final[Mapping[str, Condition]] = {row.name: row for row in _ROWS}
"""Every condition by its name."""

CONDITION_DEFAULTS: Final[Mapping[str, object]] = {row.name: row.usual if row.label else None for row in _ROWS}
"""What a condition is if it is not given: a label that is never unset has its usual value."""

USAGE: Final = {row.name: row for row in _ROWS if row.usage}.keys()
"""Those that are token counts."""
SERVER_CONDITIONS: Final = tuple(row.name for row in _ROWS if row.server)
STARTUP_CONDITIONS: Final = tuple(row.name for row in _ROWS if row.startup)


def read_condition(name: str, value: object) -> tuple[Condition, Any]:
    """Return the row and the value read by it; InvalidValue for what cannot be, whatever its own methods do."""
    row = CONDITIONS.get(name) if type(name) is str else None
    if row is None:
        # A mapping from outside may have keys of any kind.
        known = clean(name) if is_a(name, str) else ""
        raise InvalidValue(f"no condition {shown(name)}; there are {', '.join(CONDITIONS)}", event=known)
    try:
        return row, row.read(name, value)
    except InvalidValue:
        raise
    except Exception as error:
        # Without its message, which may hold what the client sent.
        raise InvalidValue(f"{name} raised {type(error).__name__}", event=name) from error


USUAL_LABELS: Final = RequestLabels()


class RequestConditions:
    """The conditions of one request: its labels, its token counts, and what its span starts with."""

    __slots__ = ("attributes", "deadline", "labels", "usage")

    def __init__(self, labels: RequestLabels, attributes: dict[str, Any]) -> None:
        self.labels = labels
        self.attributes = attributes
        self.usage: dict[str, int] = {}
        self.deadline: float | None = None

    def take_each(self, values: Mapping[str, object]) -> list[InvalidValue]:
        """Take what is given at arrival; return what is wrong with it."""
        wrong: list[InvalidValue] = []
        # The labels are made once: a frozen object for each of them would be half the cost of opening a request.
        labels: dict[str, Any] = {}
        for name, value in values.items():
            known = CONDITIONS.get(name) if type(name) is str else None
            # By identity, so that no `__eq__` of somebody's own is called.
            if known is not None and known.usual is value and value is not None:
                # The default of a parameter: it is in the labels already, and no attribute.
                continue
            try:
                row, read = read_condition(name, value)
            except InvalidValue as error:
                wrong.append(error)
            else:
                self.attributes.update(self._keep(row, read, labels))
        if labels:
            self.labels = RequestLabels(**labels) if self.labels is USUAL_LABELS else replace(self.labels, **labels)
        return wrong

    def take(self, name: str, value: object) -> dict[str, Any]:
        """Take one condition; return the attributes it changes.  InvalidValue: nothing is taken."""
        row, read = read_condition(name, value)
        labels: dict[str, Any] = {}
        changed = self._keep(row, read, labels)
        self.attributes.update(changed)
        if labels:
            self.labels = replace(self.labels, **labels)
        return changed

    def _keep(self, row: Condition, read: Any, labels: dict[str, Any]) -> dict[str, Any]:
        if row.usage:
            self.usage[row.name] = read
        elif row.name == "deadline":
            self.deadline = read
        if row.label is not None:
            labels[row.label] = read
        # A usual value is an attribute only where it replaces another one.
        if row.attribute is None or (read == row.usual and row.attribute not in self.attributes):
            return {}
        changed = {row.attribute: read}
        if row.name == "backend" and semconv.GEN_AI_PROVIDER_NAME not in self.attributes:
            # The conventions name the engine as the provider where a server runs the model itself.
            labels["provider"] = changed[semconv.GEN_AI_PROVIDER_NAME] = read
        return changed

    @property
    def engine(self) -> str:
        """What the request competes for: its engine, else the model as given."""
        return str(self.attributes.get(semconv.ENGINE) or self.labels.model or "")

    def has(self, name: str) -> bool:
        """Return whether a condition is known."""
        row = CONDITIONS[name]
        if row.usage:
            return name in self.usage
        return self.deadline is not None if row.attribute is None else row.attribute in self.attributes


def check_role(role: object) -> str:
    """Return the role; ConfigurationError unless it is one there is."""
    try:
        return read_role("role", role)
    except InvalidValue as error:
        raise ConfigurationError(str(error)) from None


def check_names(conditions: Iterable[str]) -> None:
    """ConfigurationError, with the names there are, for a condition that does not exist."""
    unknown = [name for name in conditions if name not in CONDITIONS]
    if unknown:
        raise ConfigurationError(f"no condition {unknown[0]!r:.80}; there are {', '.join(CONDITIONS)}")


def given(conditions: Mapping[str, object]) -> dict[str, object]:
    """Return the conditions that were given: None is unset, never a value."""
    # In C throughout: a comprehension over the two dozen names costs as much as starting a span.
    return dict(compress(conditions.items(), map(is_not, conditions.values(), repeat(None))))


def read_finish_reasons(value: object) -> list[str]:
    """Return why each choice ended; InvalidValue for what is not an iterable of strings."""
    name = "finish_reasons"
    try:
        if is_a(value, str) or not is_a(value, Iterable):
            raise InvalidValue(f"{name} is an iterable of strings, one for each choice", event=name)
        return [read_text(name, reason) for reason in islice(value, MAX_CHOICES)]  # type: ignore[call-overload]  # an iterable by the line above
    except InvalidValue:
        raise
    except Exception as error:
        raise InvalidValue(f"{name} raised {type(error).__name__}", event=name) from error
