"""``otel-lifecycle``: the entry point."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import click

COMMANDS: Final = {
    "report": "The whole evidence of a workload, and where to look next.",
    "compare": "Two runs of the same workload, side by side.",
    "check": "Every illegal transition; exit code 1 if there is any.",
    "replay": "Raw event logs through the state machine, into reports and OTLP.",
    "view": "One request: waterfall, tokens, stalls, attribution.",
}
"""Every command and its one line of help, so that the list costs no import."""

MISSING: Final = "otel-lifecycle needs its extra: pip install 'otel-lifecycle[cli]' ({})"


def main() -> None:
    """Run the command line and exit."""
    sys.exit(run())


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 found what it looks for, 2 could not do its work."""
    try:
        return _run(arguments)
    except ModuleNotFoundError as error:
        return _complain(MISSING.format(error))
    except BrokenPipeError:
        # Whoever read the output has had enough; Python would complain once more while it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(arguments: Sequence[str] | None) -> int:
    import click

    from otel_lifecycle._cli.problems import UNUSABLE, Unusable

    try:
        code = _group()(arguments, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return _complain("stopped", 130)
    except Unusable as error:
        return _complain(str(error), UNUSABLE)
    return code if isinstance(code, int) else 0


def _complain(message: str, code: int = 2) -> int:
    sys.stderr.write(f"otel-lifecycle: {message}\n")
    return code


def _group() -> click.Group:
    import click

    class Commands(click.Group):
        """Imports a command when it is asked for."""

        def list_commands(self, ctx: click.Context) -> list[str]:
            return list(COMMANDS)

        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            if cmd_name not in COMMANDS:
                return None
            found = getattr(importlib.import_module(f"otel_lifecycle._cli.commands.{cmd_name}"), cmd_name)
            return found if isinstance(found, click.Command) else None

        def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
            with formatter.section("Commands"):
                formatter.write_dl(list(COMMANDS.items()))

    @click.group(cls=Commands, help="From the traces of inference requests to a verdict on the workload.")
    @click.version_option(package_name="otel-lifecycle")
    def group() -> None:
        """Nothing by itself."""

    return group


if __name__ == "__main__":
    main()
