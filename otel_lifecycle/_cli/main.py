"""``otel-lifecycle``: the entry point."""

from __future__ import annotations

import errno
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_lifecycle._table.errors import BEING_READ, UNUSABLE, Unusable

if TYPE_CHECKING:
    import click

COMMANDS: Final = {
    "run": "Run a server, watch its requests live, and print the report when it ends.",
    "live": "A receiver and a live page, for servers that export already.",
    "doctor": "What is set up for OpenTelemetry, what is not, and the remedy.",
    "proxy": "A reverse proxy that watches an engine that is not Python.",
    "report": "The whole evidence of a workload, and where to look next.",
    "compare": "Two runs of the same workload, side by side.",
    "check": "Every illegal transition; exit code 1 if there is any.",
    "replay": "Raw event logs through the state machine, into reports and OTLP.",
    "export": "The table of requests as Parquet, CSV, JSON Lines, or a trace for Perfetto.",
    "sql": "A query over the table of requests.",
    "view": "One request: waterfall, tokens, stalls, attribution.",
}
"""Every command and its one line of help, so that the list costs no import."""

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors that only writing raises."""

MISSING: Final = "needs its extra: pip install '.[{}]' in its folder ({})"


def main() -> None:
    """Run the command line and exit."""
    # Standard output may be replaced by an object without an encoding, as under a test runner.
    for stream in (sys.stdout, sys.stderr):
        # A name in a script that the terminal's encoding lacks must not stop the command.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    sys.exit(run())


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 found what it looks for, 2 could not do its work."""
    BEING_READ.set(None)
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except ModuleNotFoundError as error:
        # Extras are optional, so their absence is a usage error and not a fault of the program.
        extra = "compare" if (error.name or "").startswith(("scipy", "numpy")) else "cli"
        return _complain(MISSING.format(extra, error))
    except (BrokenPipeError, SystemExit):
        # The reader closed the pipe.  Click and rich turn that into an exit with 1; nothing else exits here.
        _leave_output()
        return 0
    except OSError as error:
        _leave_output()
        place = "the output" if error.errno in FULL else error.filename or BEING_READ.get() or "the output"
        return _complain(f"{place}: {error.strerror or error}", UNUSABLE)
    except Exception as error:  # noqa: BLE001 - a traceback would end with 1, which is: found
        return _complain(_unforeseen(error), UNUSABLE)
    return code


def _leave_output() -> None:
    """Discard further output: Python would report the error again while it flushes."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unforeseen(error: Exception) -> str:
    """Return what happened and where, for a bug report; an exit code of 1 would mean something else."""
    last, place = traceback.extract_tb(error.__traceback__)[-1], BEING_READ.get()
    within = "" if place is None else f"{place}: "
    return (
        f"{within}{type(error).__name__}: {' '.join(str(error).split())} (in {Path(last.filename).name}:{last.lineno});"
        " this is a fault of otel-lifecycle, please report it"
    )


def _run(arguments: Sequence[str] | None) -> int:
    import click

    try:
        # Not standalone: click would exit by itself, and its exit code 1 means "found" here.
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

    # Defined here, because click itself is part of an extra and must not be imported with this module.
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

    @click.group(
        cls=Commands,
        help="From the traces of inference requests to a verdict on the workload.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    @click.version_option(package_name="otel-lifecycle")
    def group() -> None:
        """The group of all commands; it does nothing itself."""

    return group


if __name__ == "__main__":
    main()
