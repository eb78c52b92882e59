"""The one place the version is written; the build, the package and the instrumentation scope read it here."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.2.0"
