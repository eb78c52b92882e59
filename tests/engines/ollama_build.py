"""Ollama's server, built once from the Go module proxy: ten minutes of CPU, and a binary of 76 MB in the cache.

The zip of the module has no ``vendor`` folders, so three C and C++ headers come from Debian packages and from PyPI.
Nothing is installed on the machine: the packages are unpacked beside the binary.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Final

from tests.engines.install import engines_dir

VERSION: Final = "0.17.4"
DEBIAN: Final = ("nlohmann-json3-dev", "libstb-dev")
MINIAUDIO: Final = "miniaudio==1.71"


def ensure_ollama() -> Path:
    """Return the binary, which is built if need be; CalledProcessError if that fails."""
    folder = engines_dir() / f"ollama-{VERSION}"
    program = folder / "ollama"
    if not program.is_file():
        started = time.monotonic()
        headers = folder / "headers"
        headers.mkdir(parents=True, exist_ok=True)
        _build(folder, _headers(headers))
        shutil.rmtree(headers)
        print(f"built Ollama {VERSION} in {time.monotonic() - started:.0f} s", flush=True)
    return program


def _headers(folder: Path) -> list[Path]:
    """Fetch the headers; return the folders the compiler has to look in."""
    subprocess.run(["apt-get", "download", "-q", *DEBIAN], cwd=folder, check=True)
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True)
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "miniaudio", "-d", str(folder)]
    subprocess.run([*pip, MINIAUDIO], check=True)
    source = next(folder.glob("miniaudio-*.tar.gz"))
    with tarfile.open(source) as archive:
        archive.extractall(folder, filter="data")
    include = folder / "usr" / "include"
    return [source.with_name(source.name.removesuffix(".tar.gz")), include, include / "stb"]


def _build(folder: Path, headers: list[Path]) -> None:
    # Go's own default is "-O2 -g", and nobody debugs this binary.
    flags = dict.fromkeys(("CGO_CFLAGS", "CGO_CXXFLAGS"), "-O2")
    environ = {**os.environ, **flags, "CPATH": os.pathsep.join(map(str, headers)), "GOBIN": str(folder)}
    subprocess.run(["go", "install", f"github.com/ollama/ollama@v{VERSION}"], env=environ, check=True)
