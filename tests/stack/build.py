"""Build the real programs from the Go module proxy, once for each version of what pins them.

``python -m tests.stack.build`` builds what is missing.  Each program has a module of its own beside this file, or their
dependencies would fight.  A binary lies under a hash of the files that pin it, outside the checkout, so a fresh clone
finds it; it gets its name only when it is whole and has said its version, so a build that was cut short leaves nothing
that a later one would trust.  Its size is written beside it: one that is cut off or empty afterwards is built again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent


class BuildError(RuntimeError):
    """A program could not be built; the message says which one and what the Go tool said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One binary: the module that pins it, the package it is built from, and how to make it say its version.

    ``tags``: build tags of Go, which are part of what is built.
    """

    name: str
    module: str
    package: str
    version: tuple[str, ...] = ("--version",)
    tags: str = ""

    @property
    def pins(self) -> tuple[Path, ...]:
        """The files that decide what is built."""
        return tuple(path for name in ("go.mod", "go.sum", "main.go") if (path := HERE / self.module / name).exists())


# Without them the clients of some twenty clouds and of Kubernetes are compiled in, a third of all packages and most of
# the time. collector-config/ finds its targets by name (DNS) alone.
FEWER_DISCOVERIES: Final = "remove_all_sd,enable_dns_sd"

PROGRAMS: Final = {
    program.name: program
    for program in (
        Program(name="collector", module="collector", package="."),
        Program(
            name="prometheus",
            module="prometheus",
            package="github.com/prometheus/prometheus/cmd/prometheus",
            tags=FEWER_DISCOVERIES,
        ),
        Program(
            name="promtool",
            module="prometheus",
            package="github.com/prometheus/prometheus/cmd/promtool",
            tags=FEWER_DISCOVERIES,
        ),
        Program(
            name="alertmanager", module="alertmanager", package="github.com/prometheus/alertmanager/cmd/alertmanager"
        ),
        Program(name="amtool", module="alertmanager", package="github.com/prometheus/alertmanager/cmd/amtool"),
        Program(name="validate", module="validate", package="."),
        Program(
            name="kustomize",
            module="kustomize",
            package="sigs.k8s.io/kustomize/kustomize/v5",
            version=("version",),
        ),
        Program(
            name="jaeger",
            module="jaeger",
            package="github.com/jaegertracing/jaeger/cmd/jaeger",
            version=("version",),
        ),
    )
}


def cache_root() -> Path:
    """Return the directory that binaries are kept in, outside any checkout."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "otel-lifecycle" / "stack"


def binary(name: str) -> Path:
    """Return where the binary of that program belongs, built or not."""
    digest = hashlib.sha256(PROGRAMS[name].tags.encode())
    for path in PROGRAMS[name].pins:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return cache_root() / digest.hexdigest()[:16] / name


def missing() -> list[str]:
    """Return the names of the programs that are not built, or not whole."""
    return [name for name in PROGRAMS if not whole(name)]


def whole(name: str) -> bool:
    """Whether the program is there and as large as when it was built; one without that mark has to say its version."""
    target = binary(name)
    mark = _mark(target)
    try:
        if mark.exists():
            return mark.read_text() == str(target.stat().st_size)
        # Built before there were marks.
        done = subprocess.run([str(target), *PROGRAMS[name].version], capture_output=True, check=False, timeout=60)
        if done.returncode == 0 and target.stat().st_size:
            mark.write_text(str(target.stat().st_size))
            return True
    except (OSError, subprocess.TimeoutExpired):
        pass
    return False


def _mark(target: Path) -> Path:
    return target.with_suffix(".size")


def ensure(name: str) -> Path:
    """Return the program's binary, built first if it is not whole; BuildError says why it cannot be."""
    target = binary(name)
    if not whole(name):
        try:
            _build(PROGRAMS[name], target)
        except OSError as error:
            raise BuildError(
                f"{name} cannot be kept in {target.parent}: {error}; set XDG_CACHE_HOME to a folder that can be written"
            ) from error
    return target


def _build(program: Program, target: Path) -> None:
    """Build beside the target and rename: the target exists whole or not at all."""
    go = shutil.which("go")
    if go is None:
        raise BuildError(f"{program.name} is not built and there is no Go to build it with; install Go 1.26 or newer")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{program.name}-") as folder:
        made = Path(folder) / program.name
        # The files that pin the versions are read, never rewritten; nothing is linked to this machine's libraries.
        command = [
            go,
            "build",
            "-mod=readonly",
            "-p",
            "2",
            "-trimpath",
            "-ldflags=-s -w",
            "-tags",
            program.tags,
            "-o",
            str(made),
        ]
        _run([*command, program.package], program, cwd=HERE / program.module)
        _run([str(made), *program.version], program, cwd=Path(folder))
        _mark(target).unlink(missing_ok=True)
        size = made.stat().st_size
        made.replace(target)
        _mark(target).write_text(str(size))


def _run(command: list[str], program: Program, cwd: Path) -> None:
    """Run one step of a build; BuildError carries the end of what it said."""
    env = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-12:])
        raise BuildError(
            f"{program.name} could not be built ({Path(command[0]).name} ended with {done.returncode}); nothing was "
            f"kept, run `make stack` again once this is mended:\n{said}"
        )


def main() -> int:
    """Build whatever is missing, one after another; the exit code is 1 if any could not be built."""
    failed = 0
    for name in PROGRAMS:
        fresh = not whole(name)
        if fresh:
            sys.stdout.write(f"building {name} (minutes, once) ...\n")
            sys.stdout.flush()
        try:
            path = ensure(name)
        except BuildError as error:
            sys.stderr.write(f"{error}\n")
            failed = 1
        else:
            sys.stdout.write(f"{'built' if fresh else 'found'} {path}\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
