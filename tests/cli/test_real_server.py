"""The demo's real model, before and after one change: ``compare`` finds it, and nothing between two equal runs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.running import Ran

ROOT = Path(__file__).parents[2]
NEEDED = ("fastapi", "httpx", "uvicorn", "xllamacpp")

pytestmark = [
    pytest.mark.demo,
    pytest.mark.skipif(not all(map(importlib.util.find_spec, NEEDED)), reason="needs the extra `demo`"),
]


RUNS = 6


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six runs with two slots, six more of the same and six with four, by turns; and one of other prompts."""
    folder = tmp_path_factory.mktemp("demo")
    for number in range(RUNS):
        for name, slots in (("two", 2), ("again", 2), ("four", 4)):
            run(slots, folder / f"{name}-{number}.json", "--requests", "36")
    run(2, folder / "long.json", "--mix", "long", "--requests", "12")
    return folder


def run(slots: int, file: Path, *options: str) -> None:
    """Serve the load once."""
    command = [sys.executable, "-m", "tests.cli.demo_run", str(slots), str(file), *options]
    subprocess.run(command, cwd=ROOT, check=True, timeout=600)


def sides(folder: Path, baseline: str, candidate: str) -> list[str | Path]:
    """Return the arguments for all runs of two sides."""
    more = (
        (f"--{side}-run", folder / f"{name}-{number}.json")
        for side, name in (("baseline", baseline), ("candidate", candidate))
        for number in range(1, RUNS)
    )
    return [folder / f"{baseline}-0.json", folder / f"{candidate}-0.json", *(part for pair in more for part in pair)]


def verdicts(ran: Ran) -> dict[str, str]:
    """Return the verdicts that are any."""
    return {one["metric"]: one["verdict"] for one in ran.json["metrics"] if one["verdict"] in {"better", "worse"}}


def test_two_equal_runs_show_nothing(runs: Path, cli: Callable[..., Ran]) -> None:
    """Though no two runs of a real server take the same time."""
    assert verdicts(cli("compare", *sides(runs, "two", "again"), "--json")) == {}


def test_four_slots_are_found(runs: Path, cli: Callable[..., Ran]) -> None:
    """On the same cores, requests wait less and decode longer; no figure says otherwise."""
    ran = cli("compare", *sides(runs, "two", "four"), "--vary", "concurrency", "--json")
    assert ran.json["varied"] == [{"condition": "concurrency", "baseline": "2", "candidate": "4"}]
    told = verdicts(ran)
    expected = {"queue_wait.mean": "better", "ttft.p50": "better", "tpot.p50": "worse", "decode_time.mean": "worse"}
    found = {name: verdict for name, verdict in expected.items() if name in told}
    assert found
    assert found == {name: told[name] for name in found}


def test_four_slots_are_refused_unless_they_are_the_change(runs: Path, cli: Callable[..., Ran]) -> None:
    """Nobody compares them by mistake."""
    ran = cli("compare", runs / "two-0.json", runs / "four-0.json")
    assert ran.code == 2
    assert "concurrency: 2 against 4" in ran.err


def test_another_mix_of_prompts_is_refused(runs: Path, cli: Callable[..., Ran]) -> None:
    """It is another workload."""
    ran = cli("compare", runs / "two-0.json", runs / "long.json")
    assert ran.code == 2
    assert "input tokens: p50" in ran.err


def test_the_queue_is_diagnosed(runs: Path, cli: Callable[..., Ran]) -> None:
    """Eight clients for two slots."""
    diagnosis = cli("report", runs / "two-0.json", "--json").json["diagnosis"]
    assert diagnosis["findings"][0]["cause"] == "queueing and scheduling"
