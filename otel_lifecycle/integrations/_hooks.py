"""How methods of an engine are wrapped, and put back.

A hook runs before or after a method and never changes its arguments or its result; what a hook raises is logged once
and goes no further.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable
from typing import Any, Final

from otel_lifecycle._log import say

Hook = Callable[..., object]

_MISSING: Final = object()


class EngineMismatch(Exception):
    """The engine is not as the drop-in expects; the message says what is missing."""


def observe(hook: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a hook.  What it raises is logged and goes no further: an engine never fails because of its telemetry."""
    try:
        return hook(*arguments, **named)
    except Exception as error:  # noqa: BLE001  # guards the engine
        # A feed of frames is an object that is called, and has no name of its own.
        name = getattr(hook, "__qualname__", type(hook).__qualname__)
        say(f"drop-in.{name}", f"{name} failed: {type(error).__name__}: {error}")
        return None


class Hooks:
    """Attributes of an engine that were replaced, to be put back."""

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

        def observed(original: Callable[..., Any]) -> Callable[..., Any]:
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

            return method

        self.wrap(owner, name, observed)

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        """Replace ``owner.name`` by ``make(original)``; EngineMismatch if there is none."""
        original = getattr(owner, name, None)
        if not callable(original):
            raise EngineMismatch(f"{getattr(owner, '__name__', owner)} has no {name}")
        self.replace(owner, name, functools.wraps(original)(make(original)))

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


def installed_version(distribution: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
