"""Which lanes a run of CI has time for: `.ci/lanes` with a clock, a disk and lanes that are stand-ins."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.engines.install import ROOT

pytestmark = [pytest.mark.process, pytest.mark.source]

TOOLS: Final = {
    "date": 'cat "$STAND_IN/clock"',
    "df": 'printf "Avail\\n%sG\\n" "$(cat "$STAND_IN/free")"',
    "go": "exit 0",
    # Each lane takes what the file says, or a second, and fails if it is told to.
    "lane": (
        'name=${1#test-}; [ "$1" != -m ] || name=$3\n'
        'echo "$name" >>"$STAND_IN/ran"\n'
        '[ "$name" != stack ] || [ ! -e "$STAND_IN/builds" ] || mkdir -p "$(cat "$STAND_IN/builds")"\n'
        'took=$(cat "$STAND_IN/takes-$name" 2>/dev/null || echo 1)\n'
        'echo $(($(cat "$STAND_IN/clock") + took)) >"$STAND_IN/clock"\n'
        '[ ! -e "$STAND_IN/fails-$name" ]'
    ),
    "make": 'exec lane "$@"',
}
ENGINES: Final = ["vllm", "sglang", "transformers", "transformers-serve", "vllm-offline", "vllm-interference"]


class Machine:
    """A machine with a cache of its own, where time passes only while lanes run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / "cache" / "otel-lifecycle"
        tools = folder / "bin"
        tools.mkdir()
        for name, body in TOOLS.items():
            (tools / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
            (tools / name).chmod(0o755)
        self.write("clock", "1000000")
        self.write("free", "50")
        (self.cache / "stack" / "program").mkdir(parents=True)
        (self.cache / "engines" / "ollama-1").mkdir(parents=True)
        (self.cache / "engines" / "ollama-1" / "ollama").touch()

    def write(self, name: str, text: str = "") -> None:
        """Tell a stand-in something."""
        (self.folder / name).write_text(text)

    def warm(self) -> None:
        """Let a run have come to its end here."""
        (self.cache / "lanes").mkdir(exist_ok=True)
        (self.cache / "lanes" / ".ran").touch()

    def run(self, spent: int, **environ: str) -> tuple[list[str], str, int]:
        """Return the lanes that ran, the log's end, and the exit status."""
        self.write("ran")
        tools = self.folder / "bin"
        ran = subprocess.run(
            ["bash", str(ROOT / ".ci" / "lanes"), str(spent)],
            env={
                "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
                "STAND_IN": str(self.folder),
                "XDG_CACHE_HOME": str(self.folder / "cache"),
                "PYTHON_OF_LANES": str(tools / "lane"),
                **environ,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.stderr == ""
        return (self.folder / "ran").read_text().split(), ran.stdout, ran.returncode


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A new machine, but with the programs that are built once."""
    return Machine(tmp_path)


def test_a_new_machine_has_the_longer_limit_once(machine: Machine) -> None:
    """Its first run goes up to 4,500 s, the next one up to 2,700 s."""
    lanes, log, _ = machine.run(2000)
    assert lanes == ["openvino", "stack", "ollama", *ENGINES, "slow"]
    assert "every lane ran" in log
    lanes, log, _ = machine.run(2600)
    assert lanes == ["openvino"]
    assert "up to 2700 s" in log


def test_all_lanes_have_the_longer_limit(machine: Machine) -> None:
    """ALL_LANES=1 on a machine that has had a run."""
    machine.warm()
    lanes, _, _ = machine.run(2600, ALL_LANES="1")
    assert lanes == ["openvino", "stack", "ollama", *ENGINES, "slow"]


def test_lanes_start_only_if_their_allowance_fits(machine: Machine) -> None:
    """The seconds so far count, those of the lanes before included; what did not fit is named with both."""
    machine.warm()
    machine.write("takes-openvino", "240")
    machine.write("takes-stack", "690")
    lanes, log, status = machine.run(1680)
    assert (lanes, status) == (["openvino", "stack"], 0)
    assert "   240 s  openvino           passed\n   690 s  stack              passed\nnot run:\n" in log
    assert "  vllm: 2610 s were spent and it may take 480 s, over the limit of 2700 s\n" in log


def test_the_lane_that_ran_longest_ago_is_next(machine: Machine) -> None:
    """In a few runs every lane that fits at all has had its turn."""
    machine.warm()
    took = {"openvino": 240, "stack": 690, "ollama": 300, "sglang": 600}
    for name in ENGINES:
        took.setdefault(name, 400)
    for name, seconds in took.items():
        machine.write(f"takes-{name}", str(seconds))
    runs = [machine.run(1680)[0] for _ in range(7)]
    assert runs == [
        ["openvino", "stack"],
        ["openvino", "ollama", "vllm"],
        ["openvino", "sglang"],
        ["openvino", "transformers", "transformers-serve"],
        ["openvino", "vllm-offline", "ollama"],
        ["openvino", "vllm-interference", "transformers"],
        ["openvino", "stack"],
    ]


def test_openvino_runs_beyond_the_shorter_limit(machine: Machine) -> None:
    """It is the engine that every run tries, up to the longer limit."""
    machine.warm()
    assert machine.run(4200)[0] == ["openvino"]
    assert machine.run(4300)[0] == []


def test_torch_needs_the_disk(machine: Machine) -> None:
    """Below 12 GB its engines are named, and the others run."""
    machine.write("free", "11")
    lanes, log, _ = machine.run(1000)
    assert lanes == ["openvino", "stack", "ollama", "slow"]
    assert [f"  {name}: only 11 GB of disk are free, 12 are needed" in log for name in ENGINES] == [True] * len(ENGINES)


def test_ollama_runs_from_its_cached_binary(machine: Machine) -> None:
    """Nothing is compiled for it in CI."""
    (machine.cache / "engines" / "ollama-1" / "ollama").unlink()
    lanes, log, _ = machine.run(1000)
    assert "ollama" not in lanes
    assert "  ollama: its binary is not in the cache\n" in log


def test_the_stack_is_built_by_a_lane_of_its_own(machine: Machine) -> None:
    """Where there is time for building alone, the next run has its programs; without any, neither starts."""
    (machine.cache / "stack" / "program").rmdir()
    machine.warm()
    lanes, log, _ = machine.run(1680)
    assert "stack" not in lanes
    assert "  stack-build: 1681 s were spent and it may take 1500 s, over the limit of 2700 s\n" in log
    assert "  stack: its programs are not built\n" in log
    machine.write("builds", str(machine.cache / "stack" / "program"))
    lanes, _, _ = machine.run(2100, ALL_LANES="1")
    assert lanes[:3] == ["openvino", "stack", "stack"]


def test_a_lane_that_fails_is_named_and_the_others_run(machine: Machine) -> None:
    """The exit status says so too."""
    machine.write("fails-vllm")
    lanes, log, status = machine.run(1000)
    assert (lanes[-1], status) == ("slow", 1)
    assert "     1 s  vllm               FAILED\n" in log


@pytest.mark.parametrize("kept", [False, True])
def test_environments_of_torch_engines_are_removed(machine: Machine, kept: bool) -> None:
    """With the packages that were fetched for them, unless KEEP_ENGINES=1; those of other engines stay."""
    folders = [machine.cache / "engines" / name for name in ("vllm", "sglang", "transformers", ".packages", "openvino")]
    for folder in folders:
        folder.mkdir()
    machine.run(1000, **({"KEEP_ENGINES": "1"} if kept else {}))
    assert [folder.exists() for folder in folders] == [kept] * 4 + [True]
