"""The dashboard's panels without Grafana: its own queries, asked of a real Prometheus after real runs of the demo.

Every window of the rules is thirty times shorter (``tests.stack.overlay``), so that a run of a minute fills the panels.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup, escape

from otel_lifecycle._draw import theme
from tests.stack import overlay, programs
from tests.stack.backends import Prometheus
from tests.stack.programs import CONFIG, LOOPBACK, Running

JOB: Final = "lifecycle-demo"
SHOWN: Final = (
    "Stage breakdown",
    "Bottleneck mix",
    "Queue wait, by what ran meanwhile",
    "Decode time stalled, by cause",
    "TTFT",
    "Active requests by stage",
)
STEP_S: Final = 2
"""Seconds between two values of a panel."""
WIDTH: Final = 560
HEIGHT: Final = 150
COLOURS: Final = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")
ORDER: Final = ("queue", "preprocessing", "prefill", "decode", "mixed")
"""Series with a colour of their own, from the lowest up."""
Points = Mapping[int, float]


def dashboard(folder: Path) -> Path:
    """Run the demo in front of a Collector and a Prometheus; return a page with the panels."""
    with ExitStack() as running:
        ports = dict(zip(("grpc", "http", "health", "metrics"), programs.free_ports(4), strict=True))
        # Nothing listens at the addresses of the other programs; their series are on no panel shown here.
        elsewhere = {"alertmanager:9093": f"{LOOPBACK}:9", "jaeger:8888": f"{LOOPBACK}:9"}
        served = _started(
            running,
            programs.prometheus(folder, {**elsewhere, "collector:8888": f"{LOOPBACK}:{ports['metrics']}"}),
        )
        prometheus = Prometheus(served.ports["http"])
        endpoints = {
            "JAEGER_ENDPOINT": f"{LOOPBACK}:9",
            "TEMPO_ENDPOINT": f"{LOOPBACK}:9",
            "PROMETHEUS_ENDPOINT": f"{prometheus.base}/api/v1/otlp",
        }
        _started(running, programs.collector(folder, CONFIG / "collector.yaml", ports=ports, env=endpoints))
        began = time.time()
        for _ in range(2):
            _demo(f"http://{LOOPBACK}:{ports['grpc']}")
        seconds = int(time.time() - began)
        drawn = [_panel(prometheus, panel, seconds) for panel in _panels()]
    page = folder / "dashboard.html"
    page.write_text(_page(drawn), encoding="utf-8")
    return page


def _started(running: ExitStack, program: Running) -> Running:
    running.callback(program.stop)
    return program.start()


def _demo(endpoint: str) -> None:
    settings = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_METRIC_EXPORT_INTERVAL": "1000",
    }
    command = [sys.executable, "-m", "examples.demo"]
    subprocess.run(command, env={**os.environ, **settings}, stdout=subprocess.DEVNULL, check=True)


def _panels() -> Iterator[dict[str, Any]]:
    board = json.loads((CONFIG / "grafana" / "dashboards" / "inference.json").read_text())
    for title in SHOWN:
        yield next(one for one in board["panels"] if (one["title"], one["type"]) == (title, "timeseries"))


def _panel(prometheus: Prometheus, panel: Mapping[str, Any], seconds: int) -> Markup:
    """Ask each query of a panel, and draw its series."""
    lines: dict[str, Points] = {}
    for target in panel["targets"]:
        name = target.get("legendFormat", "")
        # Exemplars and numbers of samples have an axis of their own in Grafana.
        if name in {"exemplars", "samples"}:
            continue
        expr = target["expr"].replace("$job", JOB).replace("$model", ".*")
        for series in prometheus.series(overlay.scaled(expr), seconds, STEP_S):
            points = {int(at): float(value) for at, value in series["values"] if value != "NaN"}
            if any(points.values()):
                lines[_legend(name, series["metric"])] = points
    defaults = panel["fieldConfig"]["defaults"]
    stacking = defaults["custom"].get("stacking", {}).get("mode")
    return _drawn(panel["title"], _stacked(lines, stacking), "share" if stacking == "percent" else defaults["unit"])


def _legend(form: str, labels: Mapping[str, str]) -> str:
    for name, value in labels.items():
        form = form.replace(f"{{{{{name}}}}}", value)
    return form or ", ".join(labels.values()) or "all"


def _stacked(lines: Mapping[str, Points], mode: str | None) -> list[tuple[str, dict[int, tuple[float, float]]]]:
    """Return for each series its lower and upper edge at each instant: 0 and its value where nothing is stacked."""
    names = sorted(lines, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))
    if mode is None:
        return [(name, {at: (0.0, value) for at, value in lines[name].items()}) for name in names]
    edges: dict[str, dict[int, tuple[float, float]]] = {name: {} for name in names}
    for at in sorted({at for points in lines.values() for at in points}):
        whole = sum(points.get(at, 0.0) for points in lines.values())
        divisor, floor = (whole if mode == "percent" else 1.0), 0.0
        for name in names if divisor else ():
            top = floor + lines[name].get(at, 0.0) / divisor
            edges[name][at] = floor, top
            floor = top
    return [(name, edges[name]) for name in names]


def _drawn(title: str, series: Sequence[tuple[str, dict[int, tuple[float, float]]]], unit: str) -> Markup:
    """Return a panel: its title, its series over time with the highest value, and what each series is."""
    times = [at for _, points in series for at in points] or [0, 1]
    top = max((high for _, points in series for _, high in points.values()), default=1.0) or 1.0
    first, span = min(times), (max(times) - min(times)) or 1
    ground = HEIGHT - 15
    shapes, names = [], []
    for number, (name, points) in enumerate(series):
        colour = f"var(--{name})" if name in ORDER else COLOURS[number % len(COLOURS)]
        stacked = any(low for _, each in series for low, _ in each.values())
        for run in _runs(points):
            at = {t: f"{40 + (t - first) / span * (WIDTH - 50):.1f}" for t in run}
            height = {t: [f"{ground - edge / top * (ground - 15):.1f}" for edge in points[t]] for t in run}
            upper = " ".join(f"{at[t]},{height[t][1]}" for t in run)
            lower = " ".join(f"{at[t]},{height[t][0]}" for t in reversed(run))
            if stacked:
                shapes.append(f'<polygon points="{upper} {lower}" style="fill:{colour};opacity:.75"/>')
            shapes.append(f'<polyline points="{upper}" style="fill:none;stroke:{colour};stroke-width:1.5"/>')
        names.append(f'<span><i style="background:{colour}"></i>{escape(name)}</span>')
    axes = (
        f'<text x="0" y="20">{top:.3g}</text><text x="0" y="{ground}">0</text>'
        f'<line x1="40" x2="{WIDTH - 10}" y1="{ground}" y2="{ground}" stroke="#999"/>'
        f'<text x="{WIDTH - 10}" y="{HEIGHT}" text-anchor="end">{span} s</text>'
    )
    return Markup(  # noqa: S704 - names are escaped above, the rest is ours
        f"<section><h2>{escape(title)} <small>{escape(unit)}</small></h2>"
        f'<svg width="{WIDTH}" height="{HEIGHT}">{"".join(shapes)}{axes}</svg><p>{"".join(names)}</p></section>'
    )


def _runs(points: Mapping[int, object]) -> Iterator[list[int]]:
    """Yield the instants without a gap between them; a line must not cross a time without data."""
    run: list[int] = []
    for at in sorted(points):
        if run and at - run[-1] > 2 * STEP_S:
            yield run
            run = []
        run.append(at)
    yield run


def _page(drawn: Sequence[Markup]) -> str:
    style = (
        "main{display:grid;grid-template-columns:1fr 1fr;gap:18px;padding:16px;width:max-content;background:#fff}"
        "section{border:1px solid #ddd;border-radius:6px;padding:8px 12px}h2{font-size:15px;margin:0 0 4px}"
        "small{color:#777;font-weight:400}svg text{font-size:11px;fill:#777}p{margin:4px 0 0;font-size:12px}"
        "span{margin-right:12px}i{display:inline-block;width:10px;height:10px;margin-right:4px}"
    )
    return f"<!doctype html><meta charset=utf-8><style>{theme.stylesheet()}{style}</style><main>{''.join(drawn)}</main>"
