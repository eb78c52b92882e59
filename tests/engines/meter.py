"""What the hooks of a drop-in cost: their thread time beside the CPU time of the process, written to a file.

Runs inside the engine's process.  ``tests/engines/inject`` on PYTHONPATH installs it in each process of a server that
imports a drop-in.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_EVERY_S = 0.5
_LATEST_S = 60.0


def install(folder: Path) -> None:
    """Measure every hook from now on; the figures are in ``folder/<pid>.json``, never older than half a second."""
    from otel_lifecycle.integrations import _hooks

    inner: Callable[..., Any] = _hooks.observe
    spent = [0, 0]
    names: dict[str, list[int]] = {}

    def observe(hook: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        started = time.thread_time_ns()
        try:
            return inner(hook, *arguments, **named)
        finally:
            took = time.thread_time_ns() - started
            spent[0] += took
            spent[1] += 1
            hooked = names.setdefault(getattr(hook, "__qualname__", type(hook).__qualname__), [0, 0])
            hooked[0] += took
            hooked[1] += 1

    _hooks.observe = observe
    threading.Thread(target=_write, args=(folder / f"{os.getpid()}.meter.json", spent, names), daemon=True).start()


def _write(path: Path, spent: list[int], names: dict[str, list[int]]) -> None:
    while True:
        figures = {"hooks_ns": spent[0], "calls": spent[1], "process_ns": time.process_time_ns(), "names": dict(names)}
        part = path.with_suffix(".part")
        part.write_text(json.dumps(figures))
        part.replace(path)
        time.sleep(_EVERY_S)


def wait_until_written(folder: Path) -> None:
    """Return when every process that is alive has written its figures anew; TimeoutError if one does not.

    On a busy machine the thread that writes them can be minutes late, and the hooks would look cheap.
    """
    asked, end = time.time(), time.monotonic() + _LATEST_S
    late = {path for path in folder.glob("*.meter.json") if Path("/proc", path.name.split(".")[0]).exists()}
    while late:
        late = {path for path in late if path.stat().st_mtime <= asked}
        if time.monotonic() > end:
            raise TimeoutError(f"{len(late)} processes have not written what their hooks cost")
        time.sleep(_EVERY_S / 5)


def read(folder: Path) -> dict[str, int]:
    """Return the sums over all processes that have hooks which were called."""
    found = [json.loads(path.read_text()) for path in folder.glob("*.meter.json")]
    used = [figures for figures in found if figures["calls"]]
    return {name: sum(figures[name] for figures in used) for name in ("hooks_ns", "calls", "process_ns")}


def hooked(folder: Path) -> int:
    """Return in how many processes a hook has run: that they load the plug-in and wait is none."""
    found = [json.loads(path.read_text())["names"] for path in folder.glob("*.meter.json")]
    return sum(any("." in name and "<" not in name for name in names) for names in found)
