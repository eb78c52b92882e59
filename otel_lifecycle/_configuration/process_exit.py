"""The ways a process ends, each of which shall send what is left.

An interpreter that exits runs ``atexit``.  A child of multiprocessing does not: it leaves by ``os._exit`` after its own
finalizers.  A process that nobody gave a SIGTERM handler runs nothing at all; uvicorn puts the default back and raises
the signal again once it has drained, so that this is how most servers end.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_hooked: set[str] = set()


def at_exit(shutdown: Callable[[], Any]) -> None:
    """Call ``shutdown`` when the interpreter exits; once, however often this is said."""
    if "atexit" not in _hooked:
        _hooked.add("atexit")
        atexit.register(shutdown)


def at_exit_of_child(shutdown: Callable[[], Any]) -> None:
    """Call ``shutdown`` when this child of multiprocessing leaves; nothing in a child of ``os.fork`` itself."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, shutdown, exitpriority=0)


def at_sigterm(shutdown: Callable[[], Any], timeout: float) -> None:
    """Shut down at SIGTERM and then die of it, where nobody else handles the signal.

    An app that sets a handler of its own, before or after, keeps it.  A thread of its own does the work, since the
    signal may have come while the main one holds a lock; after ``timeout`` seconds the process dies all the same.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # what signal.signal calls it with
        worker = threading.Thread(target=shutdown, name="otel-lifecycle-sigterm", daemon=True)
        worker.start()
        worker.join(timeout)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, handle)
