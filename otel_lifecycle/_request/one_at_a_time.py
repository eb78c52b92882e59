"""One call at a time for one request, and one guard around all of them.

A lock keeps other threads out.  It cannot keep out a call on the same thread, which a signal handler may make at any
line of ours: such a call finds the request busy, is put aside, and runs when the call that it interrupted is done.  So
nothing that runs inside has to think of two calls at once.  Rejected: to let the inner call run at once, because every
half-done step of the outer one would have to survive that.

What a caller does wrong is a violation by the time it gets here; any other exception is a fault of ours and goes to the
guard, never to the server.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any, Final, TypeAlias, TypeVar

from otel_lifecycle._guard import guard
from otel_lifecycle.errors import LifecycleError

T = TypeVar("T")

# `threading.RLock` is a function around it, which costs a lock as much again.
new_lock: Final = type(RLock())

_Call: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]


class OneAtATime:
    """Runs calls one at a time, those that interrupt another one on the same thread included."""

    __slots__ = ("_busy", "_deferred", "_lock")

    def free(self) -> None:
        """Let calls in: at first, and in a forked child, since a thread of the parent may have held the lock."""
        # Re-entrant: otherwise a signal handler that marks this request would wait for its own thread.
        self._lock = new_lock()
        self._busy = False
        # Hardly any request ever queues a call.
        self._deferred: list[_Call] | None = None

    def _defer(self, call: _Call) -> None:
        # In one expression: a call that interrupts this line may make the list.
        self._deferred = [] if self._deferred is None else self._deferred
        self._deferred.append(call)

    def _run(self, call: Callable[..., T], *arguments: Any) -> T | None:
        """Run a call alone; None if it waits for the call that it interrupted, or if our code raised."""
        nested = False
        try:
            with self._lock:
                # The lock lets its own thread in again: busy means that this call interrupted another one.
                nested = self._busy
                if nested:
                    self._defer((call, arguments))
                    return None
                try:
                    self._busy = True
                    return call(*arguments)
                finally:
                    self._busy = False
                    # Still under the lock, so that a queued call runs before calls of other threads.
                    if self._deferred:
                        self._run_deferred()
        except LifecycleError:
            raise
        except Exception as error:  # noqa: BLE001  # the guard decides
            guard.fault("request", error)
            return None
        finally:
            # A nested call leaves this to the call that it interrupted.
            if not nested:
                self._after_call()

    def _run_deferred(self) -> None:
        while self._deferred:
            call, arguments = self._deferred.pop(0)
            try:
                self._busy = True
                call(*arguments)
            except LifecycleError:
                # Under a strict processor. The call that should have raised this has already returned.
                continue
            except Exception as error:  # noqa: BLE001  # the guard decides
                guard.fault("request", error)
            finally:
                self._busy = False

    def _after_call(self) -> None:
        """Do what must not be done while other calls wait."""
