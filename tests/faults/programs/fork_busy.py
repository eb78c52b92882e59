"""Fork again and again while threads serve: ``fork_busy.py CHILDREN``. Prints how each child ended."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import otel_lifecycle as lifecycle
from tests.faults.programs.serving import say, serve_one

PATIENCE = 30
"""Seconds a child has before it counts as stuck."""


def child() -> None:
    """Serve one request, send what is left, leave."""
    serve_one(model="child")
    lifecycle.shutdown()
    os._exit(0)


def wait_for(pid: int) -> str:
    """Return how the child ended; one that is stuck is killed."""
    give_up = time.monotonic() + PATIENCE
    while time.monotonic() < give_up:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return str(os.waitstatus_to_exitcode(status))
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "stuck"


def main(children: int) -> None:
    """Run."""
    lifecycle.configure()
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            serve_one(model="parent")

    threads = [threading.Thread(target=serve) for _ in range(4)]
    for thread in threads:
        thread.start()
    endings = []
    for _ in range(children):
        pid = os.fork()
        if pid == 0:
            child()
        endings.append(wait_for(pid))
    stop.set()
    for thread in threads:
        thread.join()
    say(*endings)


if __name__ == "__main__":
    main(int(sys.argv[1]))
