"""The ways a process ends.  Each of them has to send what is left.

An interpreter that exits runs ``atexit``.  A child of multiprocessing does not: it leaves by ``os._exit`` after its own
finalizers.  A process without a SIGTERM handler runs nothing at all.  Most servers end this way: uvicorn restores the
default handler and raises the signal again once it has drained.
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

# atexit cannot tell whether a function is registered.  A fork inherits this set together with the registration.
_hooked: set[str] = set()


def at_exit(shutdown: Callable[[], Any]) -> None:
    """Call ``shutdown`` when the interpreter exits; registers it once, however often it is called."""
    if "atexit" not in _hooked:
        _hooked.add("atexit")
        atexit.register(shutdown)


def at_exit_of_child(shutdown: Callable[[], Any]) -> None:
    """Call ``shutdown`` when this child of multiprocessing leaves; nothing in a child of ``os.fork`` itself."""
    # Not imported: a child of multiprocessing has it already, and no other child runs its finalizers.
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        # Undocumented, and the hook that such a child runs on every supported Python.  With a priority it runs before
        # the child's own children are joined, which may take long.
        util.Finalize(None, shutdown, exitpriority=0)


def at_sigterm(shutdown: Callable[[], Any], timeout: float) -> None:
    """Shut down at SIGTERM and then die of it, where nobody else handles the signal.

    An app that sets a handler of its own, before or after, keeps it.  A thread of its own does the work, since the
    signal may have come while the main one holds a lock; after ``timeout`` seconds the process dies all the same.
    """
    # Python sets signal handlers on the main thread only; elsewhere we do without one.
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # what signal.signal calls it with
        worker = threading.Thread(target=shutdown, name="otel-lifecycle-sigterm", daemon=True)
        worker.start()
        worker.join(timeout)
        # Die of the signal itself, so that the parent process sees it in the exit status.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, handle)
