"""``python -m tests.engines.results``: write ``docs/engines/results.md`` from the figures that the lanes kept."""

from __future__ import annotations

import json
from typing import Any, Final

from tests.engines.install import ROOT, engines_dir

ORDER: Final = (
    "vllm",
    "vllm-0.16",
    "vllm-0.12",
    "vllm-offline",
    "vllm-interference",
    "sglang",
    "transformers",
    "transformers-serve",
    "openvino",
    "ollama",
)
HEAD: Final = """# What the engines say, and what we say

Each table is one run of a lane of `make test-engines`: the engine's own figure, ours, and the difference. The engines
ran on two cores without a GPU, with a model of random weights; absolute times mean nothing, agreement does. "At most"
marks a figure whose engine side has to be at least ours: the times of clients, and limits.
"""


def main() -> None:
    """Write the page."""
    kept = {path.stem: json.loads(path.read_text()) for path in engines_dir().glob("*.json")}
    parts = [HEAD, *(_section(kept[name]) for name in ORDER if name in kept)]
    (ROOT / "docs" / "engines" / "results.md").write_text("\n".join(parts))


def _section(outcome: dict[str, Any]) -> str:
    lines = [f"## {outcome['engine']} {outcome['version']}", ""]
    lines += ["| figure | engine | ours | difference | allowed | holds |", "|---|---:|---:|---:|---:|---|"]
    lines += [_row(figure) for figure in outcome["figures"]]
    load = ", ".join(f"{one['count']} {one['name']}" for one in outcome["floors"])
    lines += ["", f"The load: {load}."] if load else []
    lines += [f"- {note}" for note in outcome["notes"]]
    return "\n".join(lines) + "\n"


def _row(figure: dict[str, Any]) -> str:
    engine, ours = figure["engine"], figure["ours"]
    difference = None if engine is None or ours is None else ours - engine
    samples = f" (n = {figure['samples']})" if figure["samples"] else ""
    unit = f", {figure['unit']}" if figure["unit"] else ""
    allowed = f"{'at most ' if figure['at_least'] else '±'}{_number(figure['within'])}"
    cells = [figure["name"] + unit + samples, *map(_number, (engine, ours, difference)), allowed]
    return "| " + " | ".join([*cells, "yes" if figure["holds"] else "**no**"]) + " |"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return str(int(value)) if float(value).is_integer() else f"{value:.6f}"


if __name__ == "__main__":
    main()
