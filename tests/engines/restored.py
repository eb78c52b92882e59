"""Whether a drop-in puts back what it replaced: ``python -m tests.engines.restored DROP_IN MODULE...``.

Runs in an engine's environment.  Every attribute of every loaded module of the engine, and of its classes, is compared
as it was before ``instrument()``, not only what the drop-in itself says it replaced.  MODULE: what it replaces things
in, imported first, so that it is compared.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

from tests.engines.figures import Figure, Outcome


def restored(outcome: Outcome, python: Path, drop_in: str, *modules: str) -> None:
    """Add how many attributes of the engine are changed, and how many stay changed; CalledProcessError if it fails."""
    command = [str(python), "-m", "tests.engines.restored", drop_in, *modules]
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    changed = json.loads(ran.stdout.splitlines()[-1])
    outcome.floor("methods that instrument() changes", changed["on"], 1)
    outcome.figures.append(Figure(name="methods that uninstrument() left changed", engine=0, ours=changed["off"]))


def _attributes(package: str) -> dict[tuple[str, str], object]:
    """Return (class or module, name) -> value, for everything of a package that is loaded."""
    found: dict[tuple[str, str], object] = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != package or module is None:
            continue
        for key, value in list(vars(module).items()):
            found[name, key] = value
            if isinstance(value, type) and value.__module__.partition(".")[0] == package:
                found |= {(f"{value.__module__}.{value.__qualname__}", k): v for k, v in list(vars(value).items())}
    return found


def _changed(now: dict[tuple[str, str], object], then: dict[tuple[str, str], object]) -> int:
    return sum(now.get(key) is not value for key, value in then.items())


def main() -> None:
    """Print both counts as JSON."""
    name, *modules = sys.argv[1:]
    for module in modules:
        importlib.import_module(module)
    package = modules[0].partition(".")[0]
    drop_in = importlib.import_module(f"otel_lifecycle.integrations.{name}")
    before = _attributes(package)
    assert drop_in.instrument()
    on = _changed(_attributes(package), before)
    drop_in.uninstrument()
    print(json.dumps({"on": on, "off": _changed(_attributes(package), before)}))


if __name__ == "__main__":
    main()
