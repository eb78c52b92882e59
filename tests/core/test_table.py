"""The table against the contract, written out here a second time, and the replay against every cell of it."""

from __future__ import annotations

import pytest

from otel_lifecycle import replay_request_events
from otel_lifecycle._core.lifecycle import EVENTS, SHAPES
from otel_lifecycle.errors import (
    DuplicateTerminal,
    EventAfterTerminal,
    IllegalTransition,
    LifecycleError,
    TerminatedBeforeArrival,
)

from .builders import trace
from .walks import TERMINALS, follow, legal_events, paths_to_states, way_out

BACK = "back"
ENDS = {"cancel": "cancelled", "timeout": "timed_out", "fail": "failed"}
GENERATION = {
    "prefill": {"first_token": "decode", "output": "decode", "preempt": "preempted", **ENDS},
    "decode": {"token": "decode", "complete": "completed", "preempt": "preempted", **ENDS},
    "preempted": {"resume": BACK, **ENDS},
}
END_STATES: dict[str, dict[str, str]] = {"completed": {}, "cancelled": {}, "timed_out": {}, "failed": {}}
CONTRACT: dict[str, dict[str, dict[str, str]]] = {
    "default": {
        "not_arrived": {"arrive": "queued"},
        "queued": {"admit": "preprocessing", **ENDS},
        "preprocessing": {"input_ready": "prefill", **ENDS},
        **GENERATION,
        **END_STATES,
    },
    "preprocess_first": {
        "not_arrived": {"arrive": "preprocessing"},
        "preprocessing": {"input_ready": "queued", **ENDS},
        "queued": {"admit": "prefill", **ENDS},
        **GENERATION,
        **END_STATES,
    },
    "pooling": {
        "not_arrived": {"arrive": "queued"},
        "queued": {"admit": "preprocessing", **ENDS},
        "preprocessing": {"input_ready": "prefill", **ENDS},
        "prefill": {"complete": "completed", "preempt": "preempted", **ENDS},
        "preempted": {"resume": BACK, **ENDS},
        **END_STATES,
    },
}
"""The rows of the contract, state by state."""

CELLS = [
    pytest.param(shape, state, event, id=f"{shape}-{state}-{event}")
    for shape in CONTRACT
    for state in CONTRACT[shape]
    for event in sorted(EVENTS)
]


def test_the_shapes() -> None:
    """There are three."""
    assert set(SHAPES) == set(CONTRACT)


def test_the_events() -> None:
    """The events of all shapes are those of the contract."""
    assert set(EVENTS) == {event for table in CONTRACT.values() for row in table.values() for event in row}


@pytest.mark.parametrize("shape", CONTRACT)
def test_rows_are_those_of_the_contract(shape: str) -> None:
    """No row is missing, none is more."""
    table = {
        state: {event: BACK if event == "resume" else following for event, following in row.items()}
        for state, row in SHAPES[shape].table.items()
    }
    assert table == CONTRACT[shape]


@pytest.mark.parametrize("shape", CONTRACT)
def test_rows_and_lookup_say_the_same(shape: str) -> None:
    """The rows that the documents show are the lookup that the checker uses."""
    rows = {(row.state, row.event): row.next for row in SHAPES[shape].rows}
    assert rows == {
        (state, event): following for state, row in SHAPES[shape].table.items() for event, following in row.items()
    }


@pytest.mark.parametrize(("shape", "state", "event"), CELLS)
def test_every_cell(shape: str, state: str, event: str) -> None:
    """In every state every event either moves as the contract says or is refused as what it is."""
    for path in paths_to_states(shape)[state]:
        names = [*path, event]
        events = trace(*((name, time) for time, name in enumerate(names)))
        if event in legal_events(shape, path):
            rest = way_out(shape, names)
            more = trace(*((name, len(names) + time) for time, name in enumerate(rest)))
            assert replay_request_events([*events, *more], shape)["status"] == follow(shape, [*names, *rest])
            continue
        with pytest.raises(LifecycleError) as caught:
            replay_request_events(events, shape)
        error = caught.value
        assert (type(error), error.state, error.event, error.timestamp, set(error.allowed)) == (
            expected_error(state, event),
            state,
            event,
            len(path),
            set(CONTRACT[shape][state]),
        )


def expected_error(state: str, event: str) -> type[LifecycleError]:
    """Return the type a refused event amounts to."""
    if state in END_STATES:
        return DuplicateTerminal if event in TERMINALS else EventAfterTerminal
    if state == "not_arrived" and event in TERMINALS:
        return TerminatedBeforeArrival
    return IllegalTransition
