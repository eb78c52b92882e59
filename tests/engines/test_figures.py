"""The lanes' own parts: when a figure fails, and what every load holds."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from tests.engines import meter
from tests.engines.figures import Figure, Outcome
from tests.engines.load import mix


@pytest.mark.parametrize(
    ("figure", "holds"),
    [
        (Figure(name="equal", engine=3, ours=3), True),
        (Figure(name="one less", engine=3, ours=2), False),
        (Figure(name="within", engine=3, ours=3.0005, within=1e-3), True),
        (Figure(name="not told by the engine", engine=None, ours=3), False),
        (Figure(name="not told by us", engine=3, ours=None), False),
        (Figure(name="client above ours", engine=3, ours=1, at_least=True), True),
        (Figure(name="client below ours", engine=1, ours=3, at_least=True), False),
        (Figure(name="below by a margin", engine=0.5, ours=0.4, within=-0.05, at_least=True), True),
        (Figure(name="not by the margin", engine=0.5, ours=0.48, within=-0.05, at_least=True), False),
    ],
    ids=lambda value: value.name if isinstance(value, Figure) else "",
)
def test_figure_holds_only_within_its_limit(figure: Figure, holds: bool) -> None:
    """A figure that one side did not tell fails, too."""
    assert figure.holds is holds


def test_lane_fails_below_its_floors() -> None:
    """A load that was too small fails, however well its figures agree."""
    outcome = Outcome(engine="engine", version="1", figures=[Figure(name="equal", engine=1, ours=1)])
    outcome.floor("requests", 199, 200)
    outcome.floor("disconnects", 2, 2)
    assert outcome.failures == ["requests: 199, at least 200 are needed"]
    assert [line.split()[-1] for line in outcome.table().splitlines()[1:]] == ["ok", "FAIL", "ok"]


def test_every_load_holds_what_the_floors_ask_for() -> None:
    """224 requests hold clients that leave, refusals, two choices, and a crowd of long answers."""
    asks = mix(224)
    kinds = Counter(ask.kind for ask in asks)
    assert kinds["left"] + kinds["left_waiting"] >= 2
    assert kinds["refused"] >= 1
    assert kinds["choices"] >= 1
    assert sum(ask.tokens == 300 for ask in asks) >= 4
    assert len({ask.trace_id for ask in asks}) == 224
    assert mix(224) == asks


def test_figures_of_hooks_are_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a living process wrote before the question is not an answer; what a dead one left is all there will be."""
    monkeypatch.setattr(meter, "_LATEST_S", 0.3)
    (tmp_path / "0.meter.json").write_text("{}")
    meter.wait_until_written(tmp_path)
    (tmp_path / f"{os.getpid()}.meter.json").write_text("{}")
    os.utime(tmp_path / f"{os.getpid()}.meter.json", (1, 1))
    with pytest.raises(TimeoutError, match="1 processes"):
        meter.wait_until_written(tmp_path)


def test_processes_are_counted_by_the_hooks_that_ran_in_them(tmp_path: Path) -> None:
    """Loading the plug-in and waiting for a module is none; a process that has loaded nothing is none either."""
    names = [
        {"when_frontend_is_imported": [5, 1], "_Frontend.added": [9, 3]},
        {"when_frontend_is_imported": [5, 1], "when_frontend_is_imported.<locals>.<lambda>": [5, 1]},
        {},
    ]
    for number, one in enumerate(names):
        (tmp_path / f"{number}.meter.json").write_text(json.dumps({"names": one}))
    assert meter.hooked(tmp_path) == 1
