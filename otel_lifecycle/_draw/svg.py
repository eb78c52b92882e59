"""SVG elements as escaped markup."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup, escape


def element(name: str, *children: str, **attributes: object) -> Markup:
    """Return an element; texts are escaped, Markup is not.  ``class_`` is class, ``data_tip`` is data-tip."""
    # Every value is escaped: tips contain names from telemetry.
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup("<{0}{1}>{2}</{0}>").format(name, Markup(pairs), joined(children))  # noqa: S704 - escaped above


def joined(parts: Iterable[str]) -> Markup:
    """Return parts one after the other."""
    return Markup("").join(parts)


def share_of(place: float) -> str:
    """Return a place between 0 and 1 as a percentage of the width."""
    return f"{place * 100:.2f}%"
