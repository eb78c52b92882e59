"""The live page as one self-contained document."""

from __future__ import annotations

import secrets
from importlib import resources
from typing import Final

import jinja2

from otel_lifecycle._draw import theme
from otel_lifecycle._version import __version__

# Defence in depth: if an escape were missing, no script without the nonce would run and nothing could be sent away.
# Styles stay inline because charts use style attributes, which a nonce cannot allow.
POLICY: Final = (
    "default-src 'none'; connect-src 'self'; img-src data:; style-src 'unsafe-inline'; script-src 'nonce-{nonce}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def live_page(title: str, address: str) -> tuple[str, dict[str, str]]:
    """Return the page and its headers; ``address`` says where telemetry goes."""
    nonce = secrets.token_urlsafe(16)
    loader = jinja2.PackageLoader("otel_lifecycle._live")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True)
    text = environment.get_template("live.html.j2").render(
        title=title,
        address=address,
        nonce=nonce,
        version=__version__,
        styles=theme.stylesheet() + _static("live.css"),
        script="\n".join((theme.script(), _static("rows.js"), _static("live.js"))),
    )
    # The next run may use the same port; it must not get the page of this one from a cache.
    return text, {"Content-Security-Policy": POLICY.format(nonce=nonce), "Cache-Control": "no-store"}


def _static(name: str) -> str:
    return (resources.files("otel_lifecycle._live") / "static" / name).read_text("utf-8")
