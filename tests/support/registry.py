"""The registry of names, held against what leaves the process in every test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

from docs.generate import groups, known_attributes
from otel_lifecycle import semconv
from tests.support.plain import Point, Span

_FREE: Final = ("inference.startup.parameter.",)
"""Prefixes of attributes whose last part the user chooses."""

_PLAIN: Final[Mapping[str, type]] = {
    "string": str,
    "int": int,
    "double": float,
    "boolean": bool,
    "string[]": list,
}


@cache
def _known() -> Mapping[str, Mapping[str, Any]]:
    return known_attributes()


@cache
def _metrics() -> Mapping[str, Mapping[str, Any]]:
    return {group["metric_name"]: group for group in groups("metrics.yaml")}


_ON_EVERY_METRIC: Final = {semconv.TRAFFIC, semconv.TENANT}
"""Attributes of ours that any metric may have."""


def wrong_points(points: Iterable[Point]) -> list[str]:
    """Return what is wrong with our metric points: a name, unit, attribute or value that the registry lacks."""
    faults: list[str] = []
    for point in points:
        name = point["metric"]
        if point["scope"]["name"] != semconv.SCOPE or not name.startswith("inference."):
            continue
        about = _metrics().get(name)
        if about is None:
            faults.append(f"{name} is not in the registry")
            continue
        if point["unit"] != about["unit"]:
            faults.append(f"the unit of {name} is {point['unit']!r}; the registry says {about['unit']!r}")
        allowed = {attribute["ref"] for attribute in about.get("attributes", ())} | _ON_EVERY_METRIC
        ours = {key for key in point["attributes"] if key.startswith("inference.")}
        faults += [f"{name} has {key}, which the registry does not give it" for key in sorted(ours - allowed)]
        faults += wrong_attributes(point["attributes"])
    return faults


def wrong_received(spans: Iterable[Span]) -> list[str]:
    """Return what is wrong with the attributes of our spans as a receiver decoded them."""
    faults: list[str] = []
    for span in spans:
        if span["scope"]["name"] == semconv.SCOPE:
            for holder in (span["attributes"], *(each["attributes"] for each in (*span["events"], *span["links"]))):
                faults += wrong_attributes(holder)
    return faults


def wrong_attributes(attributes: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with attributes of ours: a name that the registry lacks, or a value of another type."""
    ours = {name: value for name, value in attributes.items() if name.startswith("inference.")}
    return [fault for name, value in ours.items() if (fault := _fault(name, value)) is not None]


def _fault(name: str, value: Any) -> str | None:
    if name.startswith(_FREE):
        return None
    about = _known().get(name)
    if about is None:
        return f"{name} is not in the registry"
    kind = about["type"]
    if isinstance(kind, str):
        # A bool is an int to Python, and neither is the other on the wire.  The SDK stores a sequence as a tuple.
        found = list if type(value) is tuple else type(value)
        return None if found is _PLAIN[kind] else f"{name} is {value!r}; the registry says {kind}"
    members = [member["value"] for member in kind["members"]]
    return None if value in members else f"{name} is {value!r}; the registry has {', '.join(members)}"


def wrong_spans(spans: Iterable[Any]) -> list[str]:
    """Return what is wrong with the attributes of spans of the SDK, their events and their links."""
    faults: list[str] = []
    for span in spans:
        for holder in (span, *span.events, *span.links):
            faults += wrong_attributes(dict(holder.attributes or {}))
    return faults
