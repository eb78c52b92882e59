"""Functions with many keywords of one kind: a TypedDict documents them once, and type checkers read it.

How it works.  Such a function takes ``**keywords: Unpack[SomeKeywords]``.  At run time Python would then accept any
keyword and show none of them, so the decorator here gives the function a signature for ``help()`` and ``inspect``, and
the check raises what Python raises.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from inspect import Parameter, signature
from itertools import repeat
from operator import is_
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def with_keywords(defaults: Mapping[str, object]) -> Callable[[Function], Function]:
    """Let ``help()`` and ``inspect`` show each keyword, with its default, in front of those the function names."""
    shown = [Parameter(name, Parameter.KEYWORD_ONLY, default=default) for name, default in defaults.items()]

    def decorate(function: Function) -> Function:
        own = signature(function)
        *named, _ = own.parameters.values()
        function.__signature__ = own.replace(parameters=[*shown, *named])  # type: ignore[attr-defined]  # read by inspect
        return function

    return decorate


def plain_names(keywords: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return keywords whose names are plain texts: a name of another class of text may raise when it is compared."""
    # In C, since nearly all are plain.
    if all(map(is_, map(type, keywords), repeat(str))):
        return keywords
    return {str.__str__(name): value for name, value in keywords.items()}


def refuse_unknown(function: str, keywords: Mapping[str, object], known: Collection[str]) -> None:
    """TypeError for a keyword that the function does not have, as Python raises it."""
    for name in keywords:
        if name not in known:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r:.80}")
