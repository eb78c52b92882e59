"""How many examples a property tries."""

from __future__ import annotations

from hypothesis import settings

THOROUGH = 100
"""Examples of the profile `thorough`, Hypothesis' own default."""


def scaled(thorough: int, *, quick: int = THOROUGH) -> int:
    """Return the examples of a property that tries so many in the profile `thorough`, as the current profile has it.

    ``quick`` is the most that any other profile tries: for one property that many tests try, each in a form of its own.
    """
    examples = settings().max_examples
    wanted = max(3, thorough * examples // THOROUGH)
    return wanted if examples >= THOROUGH else min(wanted, quick)
