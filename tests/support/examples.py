"""How many examples a property tries."""

from __future__ import annotations

from hypothesis import settings

THOROUGH = 100
"""Examples of the profile `thorough`, Hypothesis' own default."""


def scaled(thorough: int) -> int:
    """Return the examples of a property that tries so many in the profile `thorough`, as the current profile has it."""
    return max(3, thorough * settings().max_examples // THOROUGH)
