"""The command line, as the tests of the other commands run it."""

from __future__ import annotations

from tests.cli.conftest import cli

__all__ = ["cli"]
