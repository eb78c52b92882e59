"""What the drop-ins of whole engines have in common: versions, hooks, and several engine requests as one."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from opentelemetry.trace import TracerProvider

from otel_lifecycle import _log
from otel_lifecycle.integrations._drop_in import DropIn
from otel_lifecycle.integrations._engine_requests import EngineRequests
from otel_lifecycle.integrations._hooks import EngineMismatch, Hooks, observe
from tests.support.telemetry import Telemetry

NS = 1_000_000_000


class Batcher:
    """Stands for an engine's class."""

    def add(self, number: int) -> int:
        """Return twice the number; a negative one is refused."""
        if number < 0:
            raise ValueError(number)
        return 2 * number


def drop_in(**options: Any) -> DropIn:
    """Return a drop-in for something that is surely installed."""

    def patch(hooks: Hooks, _tracer_provider: TracerProvider | None) -> None:
        hooks.around(Batcher, "add", before=lambda *_: None)

    return DropIn(
        **{"name": "batcher", "distributions": ("pytest",), "since": (8,), "before": (99,), "patch": patch, **options}
    )


@pytest.fixture(autouse=True)
def _not_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what was logged before: a place speaks once a minute."""
    monkeypatch.setattr(_log, "_last_said", {})


def test_hook_that_raises_changes_neither_result_nor_exception(caplog: pytest.LogCaptureFixture) -> None:
    """The engine gets its own result and its own exception, whatever a hook does; each hook is logged once."""

    def breaks(*_: object) -> None:
        raise RuntimeError("hook")

    hooks = Hooks()
    hooks.around(Batcher, "add", before=breaks, after=breaks, failed=breaks)
    try:
        assert [Batcher().add(1), Batcher().add(2)] == [2, 4]
        with pytest.raises(ValueError, match="-1"):
            Batcher().add(-1)
    finally:
        hooks.undo()
    assert len([record for record in caplog.records if "hook" in record.getMessage()]) == 1


def test_hooks_get_arguments_result_and_error() -> None:
    """``before`` sees the arguments, ``after`` its note and the result, ``failed`` its note and the error."""
    seen: list[tuple[object, ...]] = []
    hooks = Hooks()
    hooks.around(
        Batcher,
        "add",
        before=lambda _batcher, number: f"note {number}",
        after=lambda noted, result, _batcher, number: seen.append((noted, result, number)),
        failed=lambda noted, error: seen.append((noted, type(error))),
    )
    try:
        Batcher().add(3)
        with pytest.raises(ValueError, match="-2"):
            Batcher().add(-2)
    finally:
        hooks.undo()
    assert seen == [("note 3", 6, 3), ("note -2", ValueError)]


def test_undo_restores_what_was_there_and_what_was_inherited() -> None:
    """A method of the class is put back; one that was inherited is no longer the class's own."""

    class Child(Batcher):
        """Inherits ``add``."""

    original = Batcher.add
    hooks = Hooks()
    hooks.around(Child, "add", before=lambda *_: None)
    hooks.around(Batcher, "add", before=lambda *_: None)
    hooks.undo()
    assert Batcher.add is original
    assert "add" not in vars(Child)


def test_missing_method_is_a_mismatch() -> None:
    """A method that is gone is named."""
    with pytest.raises(EngineMismatch, match="Batcher has no remove"):
        Hooks().around(Batcher, "remove", before=lambda *_: None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"since": (99,), "before": (100,)}, "is unknown; known are 99 to below 100"),
        ({"before": (8,)}, "is unknown; known are 8 to below 8"),
        ({"distributions": ("there-is-no-such-engine",)}, "batcher is not installed"),
        ({"patch": lambda hooks, _: hooks.around(Batcher, "gone")}, "Batcher has no gone"),
        ({"patch": lambda _hooks, _: __import__("there_is_no_such_module")}, "there_is_no_such_module"),
    ],
)
def test_engine_that_is_not_known_is_named_once_and_left_alone(
    options: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is patched, nothing raises, and one line says why."""
    original = Batcher.add
    with caplog.at_level(logging.WARNING):
        one = drop_in(**options)
        assert [one.instrument(), one.instrument()] == [False, False]
    assert Batcher.add is original
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert said in lines[0]
    assert lines[0].endswith("it is not instrumented")


def test_instrument_twice_is_once_and_uninstrument_restores() -> None:
    """One pair of calls leaves the engine as it was."""
    original = Batcher.add
    one = drop_in()
    assert [one.instrument(), one.instrument()] == [True, True]
    assert Batcher.add is not original
    one.uninstrument()
    one.uninstrument()
    assert Batcher.add is original


def test_start_sets_the_hooks_once_however_often_it_is_called() -> None:
    """Two modules of an engine ask for it, one while the other is patched; the methods are wrapped once."""
    calls: list[int] = []

    def patch(hooks: Hooks, _tracer_provider: TracerProvider | None) -> None:
        assert one.start() is None
        hooks.around(Batcher, "add", before=lambda _batcher, number: calls.append(number))

    one = drop_in(patch=patch)
    try:
        assert one.start() is one.hooks
        assert one.start() is None
        Batcher().add(1)
    finally:
        one.uninstrument()
    assert calls == [1]


@pytest.mark.parametrize(("value", "on"), [("on", True), ("1", True), ("TRUE", True), ("off", False), ("", False)])
def test_variable_switches_on(value: str, on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable is named for the engine, and off where it is not set."""
    monkeypatch.setenv("OTEL_LIFECYCLE_BATCHER", value)
    assert drop_in().switched_on() is on


def test_observe_returns_the_hooks_result() -> None:
    """A hook that works gives its result."""
    assert observe(lambda number: number + 1, 1) == 2


def test_a_hook_without_a_name_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    """An object that is called, such as a feed of frames, is named by its class, and raises nothing either."""

    class Feed:
        def __call__(self, _frame: object) -> None:
            raise RuntimeError("feed")

    assert observe(Feed(), {}) is None
    (record,) = [record for record in caplog.records if "feed" in record.getMessage()]
    assert "Feed failed: RuntimeError: feed" in record.getMessage()


def opened(telemetry: Telemetry, members: int) -> EngineRequests:
    """Return the requests of an engine with one group of so many choices, whose keys are 0, 1 and on."""
    requests = EngineRequests(telemetry.tracer_provider)
    group = requests.begin({"model": "tiny"}, shape="preprocess_first", expected=members)
    group.driver.mark("input_ready")
    for choice in range(members):
        requests.join(str(choice), group, choice)
    return requests


def now() -> int:
    """Return the engine's clock."""
    import time

    return time.perf_counter_ns()


def test_choices_are_one_request_that_ends_with_the_last(telemetry: Telemetry) -> None:
    """Two engine requests of one client give one span with the tokens and the words of both."""
    requests = opened(telemetry, 2)
    for choice in ("0", "1"):
        member = requests.get(choice)
        assert member is not None
        member.scheduled(now())
        member.group.driver.item(1, member.choice)
        member.group.driver.item(1, member.choice)
    requests.close("0", "length")
    assert telemetry.spans() == []
    requests.close("1", "stop")
    [request] = [span for span in telemetry.spans() if "inference.outcome" in span["attributes"]]
    attributes = request["attributes"]
    assert attributes["inference.outcome"] == "completed"
    assert attributes["inference.streamed_tokens"] == 4
    assert list(attributes["gen_ai.response.finish_reasons"]) == ["length", "stop"]
    assert attributes["inference.violations"] == 0


@pytest.mark.parametrize(("words", "outcome"), [(("stop", "abort"), "cancelled"), (("abort", "error"), "failed")])
def test_worst_word_of_the_choices_is_the_end(telemetry: Telemetry, words: tuple[str, str], outcome: str) -> None:
    """An abort beats a normal end, an error beats both."""
    requests = opened(telemetry, 2)
    for choice, word in enumerate(words):
        requests.close(str(choice), word)
    [request] = [span for span in telemetry.spans() if "inference.outcome" in span["attributes"]]
    assert request["attributes"]["inference.outcome"] == outcome


def test_group_waits_for_members_that_are_still_to_come(telemetry: Telemetry) -> None:
    """A first choice that ends before the second is added does not end the request."""
    requests = EngineRequests(telemetry.tracer_provider)
    group = requests.begin({}, shape="preprocess_first", expected=2)
    for choice in range(2):
        requests.join(choice, group, choice)
        requests.close(choice, "stop")
        assert group.driver.ended is (choice == 1)


def test_member_that_only_prepares_is_no_choice(telemetry: Telemetry) -> None:
    """The end of a request without tokens, which fills the cache for the others, ends nothing."""
    requests = EngineRequests(telemetry.tracer_provider)
    group = requests.begin({}, shape="preprocess_first")
    requests.join("primer", group, counts=False)
    requests.close("primer", "length")
    assert not group.driver.ended
    requests.join("choice", group)
    requests.close("choice", "stop")
    assert group.driver.ended


def test_eviction_of_the_only_choice_interrupts_the_request(telemetry: Telemetry) -> None:
    """The engine's own times bound the preempted time."""
    requests = opened(telemetry, 1)
    member = requests.get("0")
    assert member is not None
    start = now()
    member.scheduled(start)
    member.group.driver.item(1, at_monotonic_ns=start + 1000)
    member.preempted(start + 2000)
    member.scheduled(start + 5000)
    member.group.driver.item(1, at_monotonic_ns=start + 6000)
    requests.close("0", "stop", at_monotonic_ns=start + 7000)
    [request] = [span for span in telemetry.spans() if "inference.outcome" in span["attributes"]]
    attributes = request["attributes"]
    assert attributes["inference.preemptions"] == 1
    assert attributes["inference.preempted"] == pytest.approx(3e-6)
    assert attributes["inference.prefill"] == pytest.approx(1e-6)
    assert attributes["inference.violations"] == 0


def test_eviction_of_one_of_several_choices_is_an_event(telemetry: Telemetry) -> None:
    """The request goes on with its other choice, so it is not preempted."""
    requests = opened(telemetry, 2)
    member = requests.get("1")
    assert member is not None
    member.scheduled(now())
    member.preempted(now())
    member.scheduled(now())
    member.preempted_so_often(1)
    for choice in ("0", "1"):
        requests.close(choice, "abort")
    [request] = [span for span in telemetry.spans() if "inference.outcome" in span["attributes"]]
    evictions = [event["attributes"] for event in request["events"] if event["name"] == "choice_preempted"]
    assert evictions == [{"inference.choice": 1}] * 2
    assert "inference.preemptions" not in request["attributes"]
    assert request["attributes"]["inference.violations"] == 0


def test_evictions_nobody_timed_are_counted(telemetry: Telemetry) -> None:
    """A running total of evictions gives each one once, and no preempted time."""
    requests = opened(telemetry, 1)
    member = requests.get("0")
    assert member is not None
    member.scheduled(now())
    member.group.driver.item(1)
    for total in (0, 1, 1, 2):
        member.preempted_so_often(total)
    requests.close("0", "stop")
    [request] = [span for span in telemetry.spans() if "inference.outcome" in span["attributes"]]
    assert request["attributes"]["inference.preemptions"] == 2
    assert "inference.preempted" not in request["attributes"]


def test_current_request_is_joined_and_left_to_its_owner(telemetry: Telemetry) -> None:
    """A drop-in below a middleware marks, and does not end."""
    with telemetry.request(model="outer", shape="preprocess_first") as outer, outer.active():
        requests = EngineRequests(telemetry.tracer_provider)
        group = requests.begin({"model": "tiny", "provider": "vllm"}, shape="preprocess_first")
        group.driver.mark("input_ready")
        requests.join("0", group).scheduled(now())
        group.driver.item(1)
        requests.close("0", "stop")
        assert not outer.ended
    [request] = [span for span in telemetry.spans() if "inference.outcome" in span["attributes"]]
    assert request["attributes"]["gen_ai.request.model"] == "outer"
    assert request["attributes"]["gen_ai.provider.name"] == "vllm"
    assert request["attributes"]["inference.outcome"] == "completed"
