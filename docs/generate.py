"""Writes the pages of the reference that come from the code: ``python -m docs.generate``.

A test holds the files against what this makes, so a change of the code that forgets them fails.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import click
import yaml

from otel_lifecycle import semconv
from otel_lifecycle._cli.main import COMMANDS
from otel_lifecycle._configuration.settings_help import HELP
from otel_lifecycle._core.lifecycle import SHAPES
from otel_lifecycle._table import schema

HERE: Final = Path(__file__).parent
REFERENCE: Final = HERE / "reference"
REGISTRY: Final = REFERENCE / "registry"
_MADE: Final = "<!-- Made by `python -m docs.generate` from the code; edit there. -->\n"


KIT: Final = HERE.parent / "collector-config" / "README.md"
OPERATE: Final = {
    "deploy.md": ("Deploy", "Start"),
    "secure.md": ("TLS and passwords", "TLS and passwords"),
    "kept-and-lost.md": ("What is kept, and what is lost", "Which traces are kept, and what is lost"),
    "searches.md": ("Searches", "Searches"),
    "runbooks.md": ("Runbooks", "Runbook"),
}
"""Page below operate/ -> its title, and the section of the kit's README that it shows."""


def pages() -> dict[Path, str]:
    """Return every generated file and its text."""
    kit = dict(section.split("\n", 1) for section in KIT.read_text(encoding="utf-8").split("\n## ")[1:])
    return {
        **{HERE / "operate" / page: _kit_page(title, kit[section]) for page, (title, section) in OPERATE.items()},
        REFERENCE / "lifecycle.md": _page("The lifecycle", lifecycle()),
        REFERENCE / "attributes.md": _page("Attributes", attributes()),
        REFERENCE / "metrics.md": _page("Metrics", metrics()),
        REFERENCE / "settings.md": _page("Settings", settings()),
        REFERENCE / "table.md": _page("The table of requests", table()),
        HERE / "command-line.md": _page("Command line", command_line()),
        REGISTRY / "metrics.yaml": metric_registry(),
    }


def _kit_page(title: str, section: str) -> str:
    """Return a section of the kit's README as a page; its headings move up by one level."""
    made = "<!-- Made by `python -m docs.generate` from collector-config/README.md; edit there. -->\n"
    page = f"{made}\n# {title}\n\n{section.strip()}\n"
    # From collector-config/ a page is at ../docs/; from docs/operate/ it is one folder up.
    return page.replace("\n### ", "\n## ").replace("](../docs/", "](../")


def _page(title: str, lines: Iterable[str]) -> str:
    return "\n".join((_MADE, f"# {title}", "", *lines)).rstrip() + "\n"


def lifecycle() -> Iterable[str]:
    """Yield the table of every shape."""
    yield "A pair of state and event that has no row is illegal."
    for shape in SHAPES.values():
        yield f"\n## Shape `{shape.name}`\n"
        yield "Stages: " + ", ".join(f"`{stage.name}`" for stage in shape.stages) + ".\n"
        yield "| state | event | next state | note |\n|---|---|---|---|"
        for row in shape.rows:
            yield f"| {row.state} | {row.event} | {row.next} | {row.note} |"


def groups(name: str) -> list[dict[str, Any]]:
    """Return the groups of one file of the registry."""
    found: list[dict[str, Any]] = yaml.safe_load((REGISTRY / name).read_text(encoding="utf-8"))["groups"]
    return found


def known_attributes() -> dict[str, dict[str, Any]]:
    """Return every attribute of the registry by its name."""
    return {attribute["id"]: attribute for attribute in groups("attributes.yaml")[0]["attributes"]}


def attributes() -> Iterable[str]:
    """Yield the attributes of each span and event."""
    known = known_attributes()
    yield "The registry in the format of OpenTelemetry Weaver is in `docs/reference/registry/`."
    for group in groups("spans.yaml"):
        kind = "Span" if group["type"] == "span" else "Span event"
        yield f"\n## {kind} `{group['id'].partition('.')[2]}`\n\n{group['brief']}\n"
        if group["type"] == "event" and len(group["attributes"]) == 1:
            continue
        yield "| attribute | type | when | meaning |\n|---|---|---|---|"
        for used in group["attributes"]:
            about = known.get(used["ref"], {"type": "", "brief": "as the convention has it"})
            cells = (f"`{used['ref']}`", _type(about["type"]), _when(used["requirement_level"]), about["brief"])
            yield f"| {' | '.join(cells)} |"


def _type(kind: Any) -> str:
    if isinstance(kind, Mapping):
        return ", ".join(f"`{member['value']}`" for member in kind["members"])
    return str(kind)


def _when(level: Any) -> str:
    if isinstance(level, Mapping):
        return str(level["conditionally_required"])
    return {"required": "always", "recommended": "as known", "opt_in": "when switched on"}[str(level)]


def metrics() -> Iterable[str]:
    """Yield the metrics."""
    yield (
        "Metrics about requests also have `gen_ai.operation.name`, `gen_ai.provider.name` and `gen_ai.request.model`; "
        "traffic other than live also has `inference.traffic`. Names from outside are bounded: 32 models, 16 error "
        "types, 1,000 combinations of an instrument; then `_OTHER`.\n"
    )
    yield "| metric | type | unit | own attributes | meaning |\n|---|---|---|---|---|"
    for metric in semconv.METRICS:
        own = ", ".join(f"`{name}`" for name in metric.attributes)
        kind = metric.kind.replace("_", " ")
        yield f"| `{metric.name}` | {kind} | `{metric.unit}` | {own} | {metric.description} |"
    yield "\n## Buckets\n\n| metric | edges |\n|---|---|"
    for metric in semconv.METRICS:
        if metric.buckets is not None:
            yield f"| `{metric.name}` | {', '.join(f'{edge:g}' for edge in metric.buckets)} |"


_INSTRUMENTS: Final = {
    "histogram": "histogram",
    "counter": "counter",
    "observable_up_down_counter": "updowncounter",
    "observable_gauge": "gauge",
}


def metric_registry() -> str:
    """Return the metrics that are ours in the format of OpenTelemetry Weaver."""
    lines = ["# Made by `python -m docs.generate` from otel_lifecycle/semconv.py.", "groups:"]
    for metric in semconv.METRICS:
        if metric.name.startswith("gen_ai."):
            continue
        lines += [
            f"  - id: metric.{metric.name}",
            "    type: metric",
            f"    metric_name: {metric.name}",
            f"    instrument: {_INSTRUMENTS[metric.kind]}",
            f'    unit: "{metric.unit}"',
            "    stability: development",
            f'    brief: "{metric.description}"',
        ]
        if metric.attributes:
            lines.append("    attributes:")
            lines += [f"      - ref: {name}" for name in metric.attributes]
    return "\n".join(lines) + "\n"


def settings() -> Iterable[str]:
    """Yield the settings of configure()."""
    yield (
        "Every setting is an argument of `configure()` and a variable. The argument wins over the variable, and the "
        "variable over the default. OpenTelemetry's own `OTEL_*` variables hold too.\n"
    )
    yield "| argument | variable | default | meaning |\n|---|---|---|---|"
    for name, (default, meaning) in HELP.items():
        argument = f"`slo=Slo({name.removeprefix('slo_')}=...)`" if name.startswith("slo_") else f"`{name}`"
        yield f"| {argument} | `OTEL_LIFECYCLE_{name.upper()}` | {default} | {meaning} |"
    yield (
        "\n`configure()` also takes `resources` (callbacks for the gauges of cache, memory and device) and "
        "`resource_attributes`; these have no variable. `OTEL_TRACES_EXPORTER` and `OTEL_METRICS_EXPORTER` name the "
        "exporters, several of them separated by commas, or `none`."
    )


def table() -> Iterable[str]:
    """Yield the schema of the table of requests."""
    yield (
        "`otel-lifecycle export`, `otel-lifecycle sql` and `otel_lifecycle.read_requests()` give one row for each "
        "request, with these columns.\n"
    )
    yield (
        f"This is version {schema.VERSION} of the table. It grows when a column is removed, renamed or gets another "
        f"meaning. An export states it: Parquet as the metadata `{schema.VERSION_KEY}`, Perfetto in `otherData`; CSV "
        "and JSON Lines have no place for it. A Parquet file with these columns goes back into the table unchanged; "
        "a file of a newer version is refused.\n"
    )
    yield schema.markdown().replace("\n### ", "\n## ").replace("### ", "## ", 1)


def command_line() -> Iterable[str]:
    """Yield the help of every command."""
    yield "`pip install 'otel-lifecycle[cli]'` installs the command `otel-lifecycle`."
    yield "Exit codes: 0 done, 1 it found what it looks for, 2 it could not do its work."
    for name, about in COMMANDS.items():
        command = getattr(importlib.import_module(f"otel_lifecycle._cli.commands.{name}"), name)
        context = click.Context(command, info_name=f"otel-lifecycle {name}", max_content_width=100, terminal_width=100)
        yield f"\n## {name}\n\n{about}\n\n```text\n{command.get_help(context).rstrip()}\n```"


def main() -> None:
    """Write every generated file."""
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
