"""The same rules and routes with short windows, so that a test sees in seconds what takes an operator minutes.

Every duration of the rule files, of prometheus.yaml and of alertmanager.yaml is divided by the same number; names,
expressions, thresholds and floors stay as they are.  What hangs on a ratio of durations (evaluations in a window) stays
as it is, too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SHORTER: Final = int(os.environ.get("STACK_SHORTER", "30"))
"""Five minutes become ten seconds, the evaluation interval one.  A slow machine may need a smaller number."""

_UNITS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
# A duration stands alone; the `5m` in a rule's name (increase5m) has a letter before it.
_DURATION: Final = re.compile(r"(?<![\w.])(\d+)([smhd])(?!\w)")


def scaled(text: str) -> str:
    """Return the text with every duration in it divided by :data:`SHORTER`."""
    return _DURATION.sub(lambda found: f"{int(found[1]) * _UNITS[found[2]] // SHORTER}ms", text)


def rules(config: Path, folder: Path, runbooks: str) -> list[Path]:
    """Write the rule files, shortened, under ``folder``, with ``runbooks`` in its place; return where they are."""
    target = folder / "rules"
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for source in sorted((config / "rules").glob("*.yaml")):
        path = target / source.name
        path.write_text(_without_comments(source.read_text()))
        path.write_text(scaled(path.read_text()).replace("{url: README.md}", f"{{url: {runbooks}}}"))
        written.append(path)
    return written


def prometheus(
    config: Path,
    folder: Path,
    targets: Mapping[str, str],
    runbooks: str = "README.md",
    source: str = "prometheus.yaml",
) -> Path:
    """Write ``source`` beside the rules, with ``targets`` in the place of the names it scrapes and posts to."""
    rules(config, folder, runbooks)
    text = scaled(_without_comments((config / source).read_text()))
    for name, address in targets.items():
        assert text.count(f"[{name}]") == 1, f"{source} names {name} {text.count(name)} times"
        text = text.replace(f"[{name}]", f"[{address}]")
    path = folder / "prometheus.yaml"
    path.write_text(text)
    return path


def alertmanager(config: Path, folder: Path, webhook: str) -> Path:
    """Write alertmanager.yaml with short waits, and the file with the webhook's address that it reads."""
    folder.mkdir(parents=True, exist_ok=True)
    secret = folder / "webhook_url"
    secret.write_text(webhook)
    text = scaled((config / "alertmanager.yaml").read_text()).replace("/etc/alertmanager/webhook_url", str(secret))
    path = folder / "alertmanager.yaml"
    path.write_text(text)
    return path


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")) + "\n"
