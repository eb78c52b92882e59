"""Switching the current context around each step of a stream, which happens once a token.

``attach``, ``get_current`` and ``detach`` of OpenTelemetry are seven Python calls a token, two thirds of what a stream
costs.  A context switch cannot be left out: whether the next step of somebody's generator reads the current span is not
known before it has run.  It can be made where it really happens: the token that ``attach`` returns is one of
``contextvars`` and names its variable, which is set and reset by C code.  Where a runtime context of another kind is
installed (``OTEL_PYTHON_CONTEXT``), its tokens name no variable, and OpenTelemetry's own functions are used.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Any, NamedTuple

from opentelemetry.context import Context, attach, detach, get_current


class ContextSwitch(NamedTuple):
    """How to make a context current, to see which one is, and to go back; ``leave`` may raise ValueError.

    It does so where a coroutine that was discarded is closed in another context: what was entered has gone with its
    own context then, and there is nothing to leave.
    """

    enter: Callable[[Context], Any]
    here: Callable[[], Context]
    leave: Callable[[Any], None]


def context_switch() -> ContextSwitch:
    """Return the quickest way there is to switch the current context."""
    current = get_current()
    token: object = attach(current)
    variable: ContextVar[Context] | None = token.var if isinstance(token, Token) else None
    known = variable is not None and variable.get() is current
    detach(token)  # type: ignore[arg-type]  # whatever attach returned
    # A runtime context of another kind may use contextvars too, with a variable that holds something else.
    if variable is None or not known:
        return ContextSwitch(attach, get_current, detach)
    return ContextSwitch(variable.set, variable.get, variable.reset)
