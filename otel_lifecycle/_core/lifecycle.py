"""The lifecycle of an inference request, as one table.

Theory of operation.  A request is in exactly one state and moves by events alone; nobody guesses a state.  The rows
below are the whole of it: (state, event) -> next state.  The checker, ``replay_request_events``, the live API, the
README, the diagrams and the tests all read them from here.  A shape is the order in which a kind of server does its
work; its rows are data of the same form.  Three rules do not fit a row of their own and are written out as rows by
:func:`_shape`:

* every state between arrival and the end may be cancelled, time out or fail;
* prefill and decode may be preempted, and ``resume`` returns to the state that was interrupted
  (:data:`INTERRUPTED` stands for it in the table);
* the first output token ends prefill and is token number 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from otel_lifecycle._core.text import is_a, shown
from otel_lifecycle.errors import (
    ConfigurationError,
    DuplicateTerminal,
    EventAfterTerminal,
    IllegalTransition,
    TerminatedBeforeArrival,
    TransitionError,
    UnknownEvent,
)

INTERRUPTED: Final = "(the state it left)"
"""As a next state: the one that ``preempt`` interrupted."""


@dataclass(frozen=True, slots=True)
class Row:
    """One legal transition."""

    state: str
    event: str
    next: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage whose time is attributed: the state it is spent in, and the boundary that leaves it.

    ``name`` is what it is called in metrics and attributes.  ``entered`` and ``left`` are keys of a report's
    ``timestamps``; ``leave`` is the event that ends it (None: only the end of the request does).
    """

    name: str
    state: str
    metric: str
    entered: str
    left: str
    leave: str | None


class Step(NamedTuple):
    """One event of a course: the key of its time in a report's ``timestamps``, and the state it leads to."""

    event: str
    key: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A lifecycle: its rows, and the stages they pass through in order.

    ``table``: the next state, by state and event.  ``steps``: the same of the events that bound a stage or end
    the request, with the boundary that each is.  ``course``: the events of a request that completes, in order, and
    after them one that never comes; ``events``: their names.  ``operation``: what a request does unless told
    otherwise.  ``queues_first``: it queues as soon as it arrives, before its input is prepared.
    """

    name: str
    rows: tuple[Row, ...]
    stages: tuple[Stage, ...]
    table: Mapping[str, Mapping[str, str]]
    steps: Mapping[str, Mapping[str, tuple[str, str]]]
    course: tuple[Step, ...]
    events: tuple[str, ...]
    operation: str
    queues_first: bool

    @property
    def streams(self) -> bool:
        """Whether requests of this shape put out tokens."""
        return "decode" in self.table

    def stage(self, name: str) -> Stage:
        """Return the stage of that name; ConfigurationError if the shape has none."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        known = ", ".join(stage.name for stage in self.stages)
        raise ConfigurationError(f"no stage {name!r} in shape {self.name!r}; its stages are {known}")


NOT_ARRIVED: Final = "not_arrived"
PREEMPTED: Final = "preempted"

# Read-only, as all tables here: every reader in the process shares them.
TERMINAL_EVENTS: Final[Mapping[str, str]] = MappingProxyType(
    {"complete": "completed", "cancel": "cancelled", "timeout": "timed_out", "fail": "failed"}
)
"""The events that end a request -> the status it ends in."""

TERMINAL_STATES: Final = frozenset(TERMINAL_EVENTS.values())

BOUNDARIES: Final[Mapping[str, str]] = MappingProxyType(
    {"arrive": "arrival", "admit": "admitted", "input_ready": "input_ready", "first_token": "first_token"}
)
"""Events that bound a stage -> their key in a report's ``timestamps``; every terminal event is ``terminal`` there."""

_DEFAULT = (
    Row("not_arrived", "arrive", "queued", "once; the request entered the process"),
    Row("queued", "admit", "preprocessing", "the scheduler granted resources"),
    Row("preprocessing", "input_ready", "prefill", "input may enter the model"),
)
# Engines that tokenise in the API process do so before a request queues for the scheduler.
_PREPROCESS_FIRST = (
    Row("not_arrived", "arrive", "preprocessing", "once; the request entered the process"),
    Row("preprocessing", "input_ready", "queued", "the input is ready and waits for resources"),
    Row("queued", "admit", "prefill", "the scheduler granted resources"),
)
_GENERATION = (
    Row("prefill", "first_token", "decode", "ends prefill, starts decode; it is token no. 1"),
    Row("prefill", "output", "decode", "a whole answer at once; the first-token time stays unknown"),
    Row("decode", "token", "decode", "one more output token"),
    Row("decode", "complete", "completed", "normal completion only from decode"),
)
# Embedding, reward and rerank models make one pass over the input and put out no tokens.
_POOLING = (Row("prefill", "complete", "completed", "the model's one pass; there are no tokens"),)

_QUEUE = Stage(name="queue", state="queued", metric="queue_wait", entered="arrival", left="admitted", leave="admit")
_PREPROCESSING = Stage(
    name="preprocessing",
    state="preprocessing",
    metric="preprocessing",
    entered="admitted",
    left="input_ready",
    leave="input_ready",
)
_PREFILL = Stage(
    name="prefill",
    state="prefill",
    metric="prefill",
    entered="input_ready",
    left="first_token",
    leave="first_token",
)
_DECODE = Stage(name="decode", state="decode", metric="decode_time", entered="first_token", left="terminal", leave=None)


def _shape(name: str, rows: tuple[Row, ...], stages: tuple[Stage, ...], operation: str = "chat") -> Shape:
    """Write out the rows every shape has: preemption, and an abnormal end from anywhere."""
    interruptible = [state for state in ("prefill", "decode") if any(row.state == state for row in rows)]
    rows += tuple(Row(state, "preempt", PREEMPTED, "the engine took its resources back") for state in interruptible)
    rows += (Row(PREEMPTED, "resume", INTERRUPTED, "the engine took it up again"),)
    # A dict keeps the order of the rows, in which tables and diagrams show the states.
    live = dict.fromkeys(row.state for row in rows if row.state != NOT_ARRIVED)
    rows += tuple(
        Row(state, event, TERMINAL_EVENTS[event], "the state it ended in is kept")
        for state in live
        for event in ("cancel", "timeout", "fail")
    )
    states = {NOT_ARRIVED, *live, *TERMINAL_STATES}
    table = {state: MappingProxyType({row.event: row.next for row in rows if row.state == state}) for state in states}
    bounds = {**BOUNDARIES, **dict.fromkeys(TERMINAL_EVENTS, "terminal")}
    steps = {
        state: MappingProxyType({event: (bounds[event], to) for event, to in following.items() if event in bounds})
        for state, following in table.items()
    }
    course = _course(steps, stages)
    return Shape(
        name=name,
        rows=rows,
        stages=stages,
        table=MappingProxyType(table),
        steps=MappingProxyType(steps),
        course=course,
        events=tuple(step.event for step in course),
        operation=operation,
        queues_first=stages[0].name == "queue",
    )


def _course(steps: Mapping[str, Mapping[str, tuple[str, str]]], stages: tuple[Stage, ...]) -> tuple[Step, ...]:
    course, state = [], NOT_ARRIVED
    for event in ("arrive", *(stage.leave or "complete" for stage in stages)):
        key, state = steps[state][event]
        course.append(Step(event, key, state))
    return (*course, Step("", "", state))


SHAPES: Final[Mapping[str, Shape]] = MappingProxyType(
    {
        "default": _shape("default", _DEFAULT + _GENERATION, (_QUEUE, _PREPROCESSING, _PREFILL, _DECODE)),
        "preprocess_first": _shape(
            "preprocess_first",
            _PREPROCESS_FIRST + _GENERATION,
            (
                Stage(
                    name="preprocessing",
                    state="preprocessing",
                    metric="preprocessing",
                    entered="arrival",
                    left="input_ready",
                    leave="input_ready",
                ),
                Stage(
                    name="queue",
                    state="queued",
                    metric="queue_wait",
                    entered="input_ready",
                    left="admitted",
                    leave="admit",
                ),
                Stage(
                    name="prefill",
                    state="prefill",
                    metric="prefill",
                    entered="admitted",
                    left="first_token",
                    leave="first_token",
                ),
                _DECODE,
            ),
        ),
        "pooling": _shape(
            "pooling",
            _DEFAULT + _POOLING,
            (
                _QUEUE,
                _PREPROCESSING,
                Stage(
                    name="prefill",
                    state="prefill",
                    metric="prefill",
                    entered="input_ready",
                    left="terminal",
                    leave="complete",
                ),
            ),
            operation="embeddings",
        ),
    }
)
"""Every shape by its name."""

EVENTS: Final = frozenset(row.event for shape in SHAPES.values() for row in shape.rows)
"""Every event that any shape has."""

STAGE_ORDER: Final = ("queue", "preprocessing", "prefill", "decode")
"""The stages a share is given of; a tie goes to the earlier one."""


def get_shape(name: object) -> Shape:
    """Return the shape of that name; ConfigurationError, with the names there are, for any other."""
    shape = SHAPES.get(name) if type(name) is str else SHAPES.get(str.__str__(name)) if is_a(name, str) else None
    if shape is None:
        raise ConfigurationError(f"no shape {shown(name)}; the shapes are {', '.join(SHAPES)}")
    return shape


def state_in(new: Shape, old: Shape, state: str) -> str | None:
    """Return the state of ``new`` that the same events lead to; None after one that the shapes do not have in common.

    None, too, while a request is preempted, and once it has ended.
    """
    states = [stage.state for stage in old.stages]
    if state not in states:
        return None
    passed = states.index(state)
    same = [stage.leave for stage in old.stages[:passed]] == [stage.leave for stage in new.stages[:passed]]
    return new.stages[passed].state if same and passed < len(new.stages) else None


def next_state(shape: Shape, state: str, event: str, interrupted: str | None = None, timestamp: object = None) -> str:
    """Return the state that ``event`` leads to, or raise the :class:`TransitionError` it amounts to.

    ``interrupted`` is the state that ``preempt`` left, which ``resume`` returns to; ``timestamp`` is for the error.
    """
    following = shape.table[state].get(event)
    if following is None:
        raise transition_error(shape, state, event, timestamp)
    # A request is in `preempted` by a `preempt` only, so `interrupted` is set wherever `resume` is legal.
    return interrupted or following if following is INTERRUPTED else following


def transition_error(shape: Shape, state: str, event: str, timestamp: object = None) -> TransitionError | UnknownEvent:
    """Build the error for an event that ``state`` does not allow."""
    allowed = tuple(shape.table[state])
    kind: type[TransitionError | UnknownEvent]
    # First: a misspelt name is an unknown event in every state, also after the end.
    if event not in EVENTS:
        kind, what = UnknownEvent, f"unknown event {event!r}"
    elif state in TERMINAL_STATES:
        kind = DuplicateTerminal if event in TERMINAL_EVENTS else EventAfterTerminal
        what = f"{event!r} after the end, the request is {state}"
    elif state == NOT_ARRIVED and event in TERMINAL_EVENTS:
        kind, what = TerminatedBeforeArrival, f"{event!r} before 'arrive'"
    else:
        kind, what = IllegalTransition, f"{event!r} while {state}"
    legal = " or ".join(allowed) or "nothing"
    message = f"{what}; legal there in shape {shape.name!r}: {legal}"
    return kind(message, state=state, event=event, timestamp=timestamp, allowed=allowed)
