"""The attribute sets of all metrics: each combination of values is built once, then looked up; their number is bounded.

The same combination is always the same object, so that what the SDK files it under can be looked up by identity.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from otel_lifecycle import semconv
from otel_lifecycle._core.labels import RequestLabels
from otel_lifecycle._core.text import Bounded
from otel_lifecycle._instruments.columns import Column, Columns, Take
from otel_lifecycle._instruments.moment import Moment
from otel_lifecycle._instruments.samples import Samples
from otel_lifecycle.semconv import Metric

# Clients choose names. Beyond 2000 attribute sets of an instrument the SDK merges all further ones, other requests'
# too, so the bounds here lie well below.
MAX_NAMES: Final = 32
MAX_ERROR_TYPES: Final = 16
MAX_TRAFFIC: Final = 8
MAX_TENANTS: Final = 64
MAX_UNITS: Final = 8
MAX_COMBINATIONS: Final = 1000
# Tenants multiply the combinations. Beyond this many they are merged, so that models and outcomes keep their names.
MAX_WITH_TENANT: Final = 700

MOST_REMEMBERED: Final = 4096
"""Label sets found by the names that a server gave.  A server that makes up new names only loses this short cut."""

Combination: TypeAlias = tuple[Any, ...]
"""Operation, provider, model, traffic and tenant; then a metric's own values in the table's order.  None is absent."""

SHARED: Final = 5
"""How many values of a combination all metrics share."""


class LabelSet:
    """The attributes that all metrics of a request share, and the columns its samples have gone into."""

    __slots__ = ("_columns", "_known", "combination")

    def __init__(self, combination: Combination, columns: MetricColumns) -> None:
        self.combination = combination
        self._columns = columns
        self._known: dict[Combination, Column] = {}

    def add(self, samples: tuple[Any, Moment] | Samples, metric: Metric, *own: Any) -> None:
        """Add a sample, or many; ``own`` are the values of the metric's own attributes."""
        key = (metric.name, own)
        column = self._known.get(key)
        if column is None:
            # Without room to remember it, it is looked up each time: slower, but the same column.
            column = self._columns.column(metric, self.combination, own)
            if len(self._known) < MAX_COMBINATIONS:
                self._known[key] = column
        column.add(samples)


class AttributeSets:
    """One attribute set for each metric and combination; beyond 1000 of a metric its open names are ``_OTHER``.

    Tenants are ``_OTHER`` beyond 700 already.
    """

    __slots__ = ("_by_metric",)

    def __init__(self) -> None:
        self._by_metric: dict[str, dict[Combination, dict[str, Any]]] = {row.name: {} for row in semconv.METRICS}

    def of(self, metric: Metric, labels: Combination, own: Combination) -> dict[str, Any]:
        """Return the attributes of a combination, always the same object."""
        known = self._by_metric[metric.name]
        attributes = known.get(labels + own)
        if attributes is None and len(known) >= MAX_WITH_TENANT:
            labels = _without_tenant(labels)
            attributes = known.get(labels + own)
        if attributes is None:
            if len(known) >= MAX_COMBINATIONS:
                # Few combinations lie beyond the limit, because all their values come from tables.
                labels, own = _overflow(labels), _overflow_own(metric, own)
            attributes = known.setdefault(labels + own, _attributes_of(metric, labels, own))
        return attributes


class MetricColumns:
    """The columns of all metrics, one for each attribute set."""

    __slots__ = ("_attributes", "_columns", "_known", "_takes")

    def __init__(self, attributes: AttributeSets, columns: Columns, takes: dict[str, Take]) -> None:
        self._attributes = attributes
        self._columns = columns
        self._takes = takes
        self._known: dict[tuple[str, int], Column] = {}

    def column(self, metric: Metric, labels: Combination, own: Combination) -> Column:
        """Return the column of a combination."""
        attributes = self._attributes.of(metric, labels, own)
        # Attribute sets live as long as this object, so an id() is never reused.
        key = (metric.name, id(attributes))
        column = self._known.get(key)
        if column is None:
            column = self._known[key] = self._columns.make(attributes, self._takes[metric.name])
        return column


class LabelSets:
    """The label sets of one meter provider; every name in them is bounded, in order of appearance.

    ``tenants``: the tenant of a request is one of them.
    """

    __slots__ = ("_columns", "_known", "_names", "_sets", "tenants")

    def __init__(self, columns: MetricColumns) -> None:
        self._columns = columns
        self._names = {name: Bounded(MAX_NAMES) for name in ("operation", "provider", "model", "phase")}
        self._names["error"] = Bounded(MAX_ERROR_TYPES)
        self._names["traffic"] = Bounded(MAX_TRAFFIC)
        self._names["tenant"] = Bounded(MAX_TENANTS)
        self.tenants = False
        self._names["unit"] = Bounded(MAX_UNITS)
        self._known: dict[RequestLabels, LabelSet] = {}
        self._sets: dict[Combination, LabelSet] = {}

    def label_tenants(self, wanted: bool) -> None:
        """Label with tenants from now on, if wanted; never stops: a series would end in the middle."""
        if wanted and not self.tenants:
            self.tenants = True
            self._known.clear()

    def of(self, labels: RequestLabels) -> LabelSet:
        """Return the label set of a request."""
        known = self._known.get(labels)
        if known is None:
            if len(self._known) >= MOST_REMEMBERED:
                # Cleared at once: an order of use would cost every request something, and refilling is rare.
                self._known.clear()
            known = self._known[labels] = self._of_combination(self.bounded(labels))
        return known

    def of_model(self, model: str | None) -> LabelSet:
        """Return the label set of samples outside requests, which have neither operation nor provider."""
        return self._of_combination(
            (None, None, None if model is None else self._names["model"].admit(model), None, None)
        )

    def bounded(self, labels: RequestLabels) -> Combination:
        """Return operation, provider, model, traffic and tenant, bounded."""
        admit = self._names
        return (
            admit["operation"].admit(labels.operation),
            None if labels.provider is None else admit["provider"].admit(labels.provider),
            None if labels.model is None else admit["model"].admit(labels.model),
            # Live traffic has no attribute, so that its series are those of a server without other traffic.
            None if labels.traffic == "live" else admit["traffic"].admit(labels.traffic),
            admit["tenant"].admit(labels.tenant) if self.tenants and labels.tenant is not None else None,
        )

    def name(self, what: str, name: str | None) -> str | None:
        """Return an error type (``error``), a cold-start phase (``phase``) or a unit (``unit``), bounded."""
        return None if name is None else self._names[what].admit(name)

    def _of_combination(self, combination: Combination) -> LabelSet:
        known = self._sets.get(combination)
        if known is None:
            known = LabelSet(combination, self._columns)
            if len(self._sets) < MAX_COMBINATIONS:
                self._sets[combination] = known
        return known


def _attributes_of(metric: Metric, labels: Combination, own: Combination) -> dict[str, Any]:
    """Return the attributes of a combination; what is absent is left out."""
    operation, provider, model, traffic, tenant = labels
    attributes = {
        semconv.GEN_AI_OPERATION_NAME: operation,
        semconv.GEN_AI_PROVIDER_NAME: provider,
        semconv.GEN_AI_REQUEST_MODEL: model,
        semconv.TRAFFIC: traffic,
        semconv.TENANT: tenant,
        **dict(zip(metric.attributes, own, strict=True)),
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _overflow(labels: Combination) -> Combination:
    # Traffic is one of a few names already, and keeps warm-up apart from live.
    *names, traffic, tenant = labels
    return (*(None if name is None else semconv.OTHER for name in names), traffic, tenant)


def _without_tenant(labels: Combination) -> Combination:
    *others, tenant = labels
    return (*others, None if tenant is None else semconv.OTHER)


def _overflow_own(metric: Metric, own: Combination) -> Combination:
    return tuple(
        semconv.OTHER if name == semconv.ERROR_TYPE and value is not None else value
        for name, value in zip(metric.attributes, own, strict=True)
    )
