"""``python -m tests.engines ENGINE``: install an engine, run its lane, print the table; 1 if a figure fails."""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.engines.install import RECIPES, engines_dir, ensure, installed, remove
from tests.engines.serving import EngineFailed

LANES: Final = {
    "ollama": ("ollama", "ollama"),
    "openvino": ("openvino", "openvino"),
    "sglang": ("sglang", "sglang"),
    "transformers": ("transformers", "transformers"),
    "transformers-serve": ("transformers", "transformers_serve"),
    "vllm": ("vllm", "vllm"),
    "vllm-0.12": ("vllm-0.12", "vllm"),
    "vllm-0.16": ("vllm-0.16", "vllm"),
    "vllm-interference": ("vllm", "vllm_interference"),
    "vllm-offline": ("vllm", "vllm_offline"),
}
"""Each lane -> the environment it needs, and its module."""


def main() -> int:
    """Run one lane."""
    parser = argparse.ArgumentParser(prog="tests.engines", description=__doc__)
    parser.add_argument("engine", choices=sorted(LANES))
    parser.add_argument("--python", type=Path, help="the interpreter of an environment made by hand")
    parser.add_argument("--keep", type=Path, help="a folder for the logs and figures; else they go with the lane")
    parser.add_argument("--remove", action="store_true", help="delete the environment afterwards")
    parser.add_argument("--install", action="store_true", help="install only")
    arguments = parser.parse_args()
    environment, module = LANES[arguments.engine]
    python = arguments.python or ensure(environment)
    if arguments.install:
        return 0
    try:
        return _run(arguments.engine, module, python, arguments.keep)
    finally:
        if arguments.remove:
            remove(environment)


def _run(engine: str, module: str, python: Path, keep: Path | None) -> int:
    lane = importlib.import_module(f"tests.engines.lanes.{module}")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"{engine}-") as temporary:
        scratch = Path(temporary) if keep is None else keep
        scratch.mkdir(parents=True, exist_ok=True)
        try:
            outcome = lane.run(python, scratch, installed(python, RECIPES[LANES[engine][0]].distribution))
        except EngineFailed as error:
            print(error, file=sys.stderr)
            return 1
        print(outcome.table(), flush=True)
        outcome.save(engines_dir() / f"{engine}.json")
    print(f"{engine}: {time.monotonic() - started:.0f} s", flush=True)
    for line in outcome.failures:
        print(f"FAILED {line}", file=sys.stderr)
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
