"""Running a command within the test's own process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from otel_lifecycle._cli.main import run


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that has run: its exit code, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it wrote as JSON."""
        assert self.code in {0, 1}, self.err
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        """What it wrote as lines of JSON."""
        return [json.loads(line) for line in self.out.splitlines()]


def run_with(capture: pytest.CaptureFixture[str], *arguments: object) -> Ran:
    """Run a command and return what it left."""
    capture.readouterr()
    code = run([str(argument) for argument in arguments])
    out, err = capture.readouterr()
    return Ran(code, out, err)
