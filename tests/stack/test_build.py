"""`make stack` and the start of a program, when something is in the way: a clear error, and the next try mends it."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stack import build, programs
from tests.stack.programs import CONFIG, LOOPBACK

# A Go that fails as the real one does without its proxy until ./proxy is there, and else writes a program.
FAKE_GO = """#!/bin/sh
while [ "$1" != "-o" ]; do shift; done
printf 'half' > "$2"
[ -e {flag} ] || {{ echo 'dial tcp: lookup proxy: no such host' >&2; exit 1; }}
printf '#!/bin/sh\\necho 1.0\\n' > "$2"; chmod +x "$2"
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and the fake Go as the only Go."""
    tools = tmp_path / "tools"
    tools.mkdir()
    go = tools / "go"
    go.write_text(FAKE_GO.format(flag=tmp_path / "proxy"))
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def files(cache: Path) -> list[str]:
    """Return the files of the cache."""
    return sorted(path.name for path in (cache / "cache").rglob("*") if path.is_file())


def test_an_unreachable_proxy_is_named_and_the_next_try_mends_it(cache: Path) -> None:
    """A failed build says what Go said and leaves nothing; the next one builds."""
    with pytest.raises(build.BuildError, match=r"(?s)jaeger could not be built .*run `make stack` again.*no such host"):
        build.ensure("jaeger")
    assert files(cache) == []
    (cache / "proxy").touch()
    assert build.ensure("jaeger").is_file()
    assert files(cache) == ["jaeger", "jaeger.size"]


def test_a_half_built_cache_is_not_trusted(cache: Path) -> None:
    """What a killed build left beside is not taken for the program."""
    folder = build.binary("amtool").parent / ".amtool-killed"
    folder.mkdir(parents=True)
    (folder / "amtool").write_text("half")
    assert "amtool" in build.missing()
    (cache / "proxy").touch()
    assert build.ensure("amtool").read_text() != "half"
    assert "amtool" not in build.missing()


@pytest.mark.parametrize("marked", [True, False], ids=["with its size beside it", "from before there were sizes"])
@pytest.mark.parametrize("left", ["", "#!/bin/sh\nexec /nowhere"], ids=["empty", "cut off"])
def test_a_binary_that_is_not_whole_is_built_again(cache: Path, left: str, marked: bool) -> None:
    """A disk that was full, a copy that was cut short: it is missing, and the next try mends it."""
    (cache / "proxy").touch()
    target = build.ensure("promtool")
    sound = target.read_text()
    if not marked:
        (target.parent / "promtool.size").unlink()
    target.write_text(left)
    assert "promtool" in build.missing()
    assert build.ensure("promtool").read_text() == sound
    assert "promtool" not in build.missing()


def test_a_sound_binary_without_its_size_is_taken_and_measured(cache: Path) -> None:
    """Built before there were sizes: it says its version once, and is not built again."""
    (cache / "proxy").touch()
    target = build.ensure("promtool")
    (target.parent / "promtool.size").unlink()
    (cache / "proxy").unlink()
    assert build.ensure("promtool") == target
    assert files(cache) == ["promtool", "promtool.size"]


def test_a_cache_that_cannot_be_made_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file where its folder should be: which folder, why, and what to set instead."""
    (cache / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache / "file"))
    said = r"jaeger cannot be kept in .*/file/otel-lifecycle/stack/\w+: .*set XDG_CACHE_HOME to a folder"
    with pytest.raises(build.BuildError, match=said):
        build.ensure("jaeger")
    assert build.main() == 1


def test_without_go_the_error_says_what_is_missing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of the program, and what to install."""
    monkeypatch.setenv("PATH", str(cache))
    with pytest.raises(build.BuildError, match="promtool is not built and there is no Go to build it with; install Go"):
        build.ensure("promtool")


def test_without_go_one_line_says_what_is_skipped(cache: Path) -> None:
    """All that is marked stack, wherever it stands: one skipped, and none fails or runs."""
    command = [sys.executable, "-m", "pytest", "-m", "stack", "-rs", "-p", "no:cacheprovider"]
    env = {**os.environ, "PATH": str(cache), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [*command, "tests/stack", "tests/cli/test_real_backends.py"],
        cwd=build.HERE.parents[1],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    (skipped,) = re.findall(r"^SKIPPED .*$", done.stdout, re.MULTILINE)
    assert ": all tests on real backends: no Go to build collector, " in skipped
    assert re.search(r"^=+ 1 skipped, \d+ deselected", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize("there", [True, False], ids=["with Go", "without Go"])
def test_the_tests_build_first_where_there_is_go(cache: Path, there: bool) -> None:
    """`make test-stack` builds what is missing before anything is collected; without Go it goes on to skip."""
    path = os.environ["PATH"] if there else "/nowhere"
    make = shutil.which("make")
    assert make is not None
    done = subprocess.run(
        [make, "-n", "-f", str(build.HERE / "stack.mk"), "test-stack", "STAMP=", "BIN=bin"],
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ("bin/python -m tests.stack.build" in done.stdout) is there
    assert "bin/python -m pytest -m stack" in done.stdout


def test_what_pins_a_program_decides_where_it_lies(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another go.mod is another binary, so a new version is never answered with an old program."""
    before = build.binary("collector")
    copy = cache / "module"
    copy.mkdir()
    for path in build.PROGRAMS["collector"].pins:
        (copy / path.name).write_text(path.read_text())
    monkeypatch.setattr(build, "HERE", cache)
    monkeypatch.setitem(build.PROGRAMS, "collector", build.Program(name="collector", module="module", package="."))
    assert build.binary("collector") == before
    (copy / "go.mod").write_text((copy / "go.mod").read_text() + "\n// changed\n")
    assert build.binary("collector") != before


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    """The error of a program that cannot listen carries its own words, and starting it on another port works."""
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        ports = dict(zip(("http", "health", "metrics"), programs.free_ports(3), strict=True))
        blocked = {**ports, "grpc": taken.getsockname()[1]}
        program = programs.collector(tmp_path, CONFIG / "collector.yaml", name="blocked", ports=blocked)
        said = r"(?s)blocked ended with 1 while starting.*address already in use"
        with pytest.raises(programs.StackError, match=said):
            program.start()
    free = programs.collector(tmp_path, CONFIG / "collector.yaml", name="free").start()
    free.stop()
    assert free.process is not None
    assert free.process.returncode == 0
