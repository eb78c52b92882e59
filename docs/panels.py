"""The dashboard's panels without Grafana: its own queries, asked of a real Prometheus after a real run of the demo."""

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

from otel_lifecycle._cli.draw import theme
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
WIDTH: Final = 560
HEIGHT: Final = 150
COLOURS: Final = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")
Points = Sequence[tuple[float, float]]


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
        expr = target["expr"].replace("$job", JOB).replace("$model", ".*")
        for series in prometheus.series(overlay.scaled(expr), seconds):
            points = [(float(at), float(value)) for at, value in series["values"] if value != "NaN"]
            if any(value for _, value in points):
                lines[_legend(target.get("legendFormat", ""), series["metric"])] = points
    unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit", "short")
    return _drawn(panel["title"], lines, unit)


def _legend(form: str, labels: Mapping[str, str]) -> str:
    for name, value in labels.items():
        form = form.replace(f"{{{{{name}}}}}", value)
    return form or ", ".join(labels.values()) or "all"


def _drawn(title: str, lines: Mapping[str, Points], unit: str) -> Markup:
    """Return a panel: its title, its lines over time with the highest value, and what each line is."""
    times = [at for points in lines.values() for at, _ in points] or [0.0, 1.0]
    top = max((value for points in lines.values() for _, value in points), default=1.0) or 1.0
    first, span = min(times), (max(times) - min(times)) or 1.0
    shapes, names = [], []
    for (name, points), colour in zip(sorted(lines.items()), COLOURS, strict=False):
        path = " ".join(
            f"{40 + (at - first) / span * (WIDTH - 50):.1f},{HEIGHT - 15 - value / top * (HEIGHT - 30):.1f}"
            for at, value in points
        )
        shapes.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        names.append(f'<span><i style="background:{colour}"></i>{escape(name)}</span>')
    ground = HEIGHT - 15
    axes = (
        f'<text x="0" y="20">{top:.3g}</text><text x="0" y="{ground}">0</text>'
        f'<line x1="40" x2="{WIDTH - 10}" y1="{ground}" y2="{ground}" stroke="#999"/>'
        f'<text x="{WIDTH - 10}" y="{HEIGHT}" text-anchor="end">{span:.0f} s</text>'
    )
    return Markup(  # noqa: S704 - names are escaped above, the rest is ours
        f"<section><h2>{escape(title)} <small>{escape(unit)}</small></h2>"
        f'<svg width="{WIDTH}" height="{HEIGHT}">{axes}{"".join(shapes)}</svg><p>{"".join(names)}</p></section>'
    )


def _page(drawn: Sequence[Markup]) -> str:
    style = (
        "main{display:grid;grid-template-columns:1fr 1fr;gap:18px;padding:16px;width:max-content;background:#fff}"
        "section{border:1px solid #ddd;border-radius:6px;padding:8px 12px}h2{font-size:15px;margin:0 0 4px}"
        "small{color:#777;font-weight:400}svg text{font-size:11px;fill:#777}p{margin:4px 0 0;font-size:12px}"
        "span{margin-right:12px}i{display:inline-block;width:10px;height:10px;margin-right:4px}"
    )
    return f"<!doctype html><meta charset=utf-8><style>{theme.stylesheet()}{style}</style><main>{''.join(drawn)}</main>"
