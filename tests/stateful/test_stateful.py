"""The state machine, run."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from .machine import AnyServer


@pytest.fixture
def restless_collector() -> Iterator[None]:
    """Let the garbage collector run all the time, within everybody's locks too."""
    before = gc.get_threshold()
    # It need not walk what was there before: that costs more than the test.
    gc.freeze()
    gc.set_threshold(200, 3, 3)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("restless_collector")
@pytest.mark.parametrize(
    ("examples", "steps"), [(6, 15), pytest.param(150, 50, marks=[pytest.mark.slow, pytest.mark.timeout(1500)])]
)
def test_any_interleaving_leaves_one_outcome_per_arrival(examples: int, steps: int) -> None:
    """Marks, ends, context copies, threads, garbage collections and shutdowns, in any order."""
    # With the collector this restless, shrinking a failure takes longer than the suite's timeout, which would hide it.
    phases = [Phase.explicit, Phase.reuse, Phase.generate]
    run_state_machine_as_test(
        AnyServer, settings=settings(max_examples=examples, stateful_step_count=steps, phases=phases)
    )
