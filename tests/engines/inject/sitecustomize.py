"""Found on PYTHONPATH by each Python process of a server under test: measures the hooks of its drop-in.

A plain import hook: the module that is waited for is imported by the drop-in, long after this one.
"""

import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

# The first module of a drop-in, so that every other one gets the measured observe().
_WANTED = "otel_lifecycle.integrations._hooks"
_FOLDER = os.environ.get("ENGINE_METER", "")


class _Finder(MetaPathFinder):
    """Finds the module as usual, and has its loader install the meter afterwards."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != _WANTED:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if isinstance(spec, ModuleSpec) and isinstance(spec.loader, Loader):
            _measure(spec.loader)
        return spec


def _measure(loader):  # type: ignore[no-untyped-def]
    execute = loader.exec_module

    def exec_module(module):  # type: ignore[no-untyped-def]
        execute(module)
        spec = spec_from_file_location("engine_meter", Path(__file__).parents[1] / "meter.py")
        meter = module_from_spec(spec)
        spec.loader.exec_module(meter)
        meter.install(Path(_FOLDER))

    loader.exec_module = exec_module


if _FOLDER:
    sys.meta_path.insert(0, _Finder())
