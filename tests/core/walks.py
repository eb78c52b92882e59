"""Walks through the lifecycle table: a second, naive reading of it, and hypothesis strategies over it.

The reading here knows nothing of the code under test but the rows of :data:`SHAPES`.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from otel_lifecycle._core.lifecycle import INTERRUPTED, SHAPES

from .builders import Event, trace

TERMINALS = ("complete", "cancel", "timeout", "fail")
GENERATING = ("default", "preprocess_first")
Place = tuple[str, str | None]
"""A state, and the state that ``preempt`` interrupted."""

START: Place = ("not_arrived", None)


def move(shape: str, place: Place, event: str) -> Place | None:
    """Return where an event leads, None where there is no row."""
    state, interrupted = place
    following = SHAPES[shape].table[state].get(event)
    if following is None:
        return None
    if following == INTERRUPTED:
        return str(interrupted), None
    return following, state if event == "preempt" else interrupted


def walk(shape: str, names: Sequence[str]) -> tuple[Place, int]:
    """Return how far a list of events gets: the place, and the number of events that were legal."""
    place = START
    for index, name in enumerate(names):
        following = move(shape, place, name)
        if following is None:
            return place, index
        place = following
    return place, len(names)


def follow(shape: str, names: Sequence[str]) -> str:
    """Return the state that legal events lead to."""
    (state, _), legal = walk(shape, names)
    assert legal == len(names), f"{names[legal]} is illegal at {legal} of {names}"
    return state


def legal_events(shape: str, names: Sequence[str]) -> set[str]:
    """Return the events that may follow."""
    return set(SHAPES[shape].table[follow(shape, names)])


def paths_to_states(shape: str) -> dict[str, list[list[str]]]:
    """Return the shortest paths to every state, one for each state it can be entered from."""
    seen: set[tuple[Place, Place]] = set()
    paths: dict[str, list[list[str]]] = {START[0]: [[]]}
    front: list[tuple[Place, list[str]]] = [(START, [])]
    while front:
        place, path = front.pop(0)
        for event in SHAPES[shape].table[place[0]]:
            following = move(shape, place, event)
            if following is None or (place, following) in seen:
                continue
            seen.add((place, following))
            paths.setdefault(following[0], []).append([*path, event])
            front.append((following, [*path, event]))
    return paths


def way_out(shape: str, names: Sequence[str]) -> list[str]:
    """Return events that end a request; none where it has ended."""
    return ["cancel"] if SHAPES[shape].table[follow(shape, names)] else []


@st.composite
def event_names(draw: st.DrawFn, shape: str, without: frozenset[str] = frozenset()) -> list[str]:
    """Draw a whole legal path, from arrival to an end, of at most about thirty events."""
    place, names = START, list[str]()
    longest = draw(st.integers(1, 30))
    while SHAPES[shape].table[place[0]]:
        events = sorted(set(SHAPES[shape].table[place[0]]) - without)
        if len(names) >= longest:
            ends = [event for event in events if event in TERMINALS]
            events = ends or [event for event in events if event != "preempt"]
        name = draw(st.sampled_from(events))
        following = move(shape, place, name)
        assert following is not None
        place = following
        names.append(name)
    return names


def times(count: int, smallest_gap: int = 0, largest: int = 10**12) -> st.SearchStrategy[list[int]]:
    """Draw integer times that never go back."""
    gaps = st.lists(st.integers(smallest_gap, largest), min_size=count, max_size=count)
    return gaps.map(lambda steps: [sum(steps[: index + 1]) for index in range(count)])


@st.composite
def traces(draw: st.DrawFn, shape: str, without: frozenset[str] = frozenset(), smallest_gap: int = 0) -> list[Event]:
    """Draw a legal trace, every time known."""
    names = draw(event_names(shape, without))
    return trace(*zip(names, draw(times(len(names), smallest_gap)), strict=True))


@st.composite
def streamed(draw: st.DrawFn, shape: str, end: str | None = None) -> list[Event]:
    """Draw a trace with a known first token, in several chunks and choices, perhaps preempted."""
    order = ["admit", "input_ready"] if shape == "default" else ["input_ready", "admit"]
    pause = st.sampled_from([[], ["preempt", "resume"]])
    body = [*draw(pause), "first_token"]
    for _ in range(draw(st.integers(0, 8))):
        body += [*draw(pause), "token"]
    body += [*draw(pause), end or draw(st.sampled_from(TERMINALS))]
    names = ["arrive", *order, *body]
    events = trace(*zip(names, draw(times(len(names))), strict=True))
    for event in events:
        if event["event"] in ("first_token", "token"):
            event |= {"count": draw(st.integers(1, 3)), "choice": draw(st.integers(0, 2))}
    return events


@st.composite
def blurred(draw: st.DrawFn, shape: str) -> list[Event]:
    """Draw a legal trace with any of its times unknown."""
    events = draw(traces(shape))
    unknown = draw(st.lists(st.booleans(), min_size=len(events), max_size=len(events)))
    return [{**event, "timestamp": None} if hide else event for event, hide in zip(events, unknown, strict=True)]
