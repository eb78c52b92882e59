"""A plain script that serves, with one request always open, and then ends in one way: ``ends.py HOW COUNT``.

``HOW``: ``return`` (the script is over), ``exception``, ``exit`` (sys.exit in the middle), ``shutdown`` (with a request
in flight, prints what ``shutdown()`` returned and how long it took), ``hard`` (os._exit), ``wait`` (serves on until a
signal ends it), ``handled`` (the same with a handler that leaves by sys.exit), ``inside`` (serves without a pause, and
the handler calls ``shutdown()`` itself, in the middle of whatever the main thread is at).  With ``NO_NEW_THREADS`` in
the environment no thread can be started while the interpreter exits, which is so in Python 3.12.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from typing import Any

import otel_lifecycle as lifecycle
from tests.faults.programs.serving import say, serve_one

OPEN: list[Any] = []
"""The request in flight; a handle that is dropped would be an abandoned one."""


def end(how: str) -> None:
    """End the process."""
    if how == "exception":
        raise RuntimeError("the script's own")
    if how == "exit":
        sys.exit(3)
    if how == "hard":
        os._exit(0)
    if how == "shutdown":
        say("shutdown", lifecycle.shutdown(timeout=float(os.environ.get("TIMEOUT", "10"))))


def refuse_new_threads() -> None:
    """Start no thread from now on."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    # Stands in for the interpreter's own refusal.
    setattr(threading.Thread, "start", start)  # noqa: B010  # an assignment would not type


def shut_down_inside(number: int, frame: object) -> None:
    """Be a signal handler that shuts telemetry down and leaves."""
    lifecycle.shutdown()
    sys.exit(0)


def serve_on(served: int, gap: float) -> None:
    """Serve until the process is ended; say how many requests were served in all, if that is to be."""
    try:
        while True:
            serve_one(tokens=2, gap=gap)
            served += 1
    finally:
        say("served", served)


def main(how: str, count: int) -> None:
    """Run."""
    lifecycle.configure()
    if "NO_NEW_THREADS" in os.environ:
        atexit.register(refuse_new_threads)
    if how == "handled":
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    if how == "inside":
        signal.signal(signal.SIGTERM, shut_down_inside)
    OPEN.append(lifecycle.request(model="open"))
    OPEN[0].admit()
    for _ in range(count):
        serve_one()
    say("served", count)
    if how in {"wait", "handled", "inside"}:
        serve_on(count, 0 if how == "inside" else 0.01)
    end(how)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
