"""What happens to a request inside LitServe's inference workers, reported to the process that answers it.

Workers are separate, spawned processes.  LitServe hands them the callback below like any other, and the callback wraps
what the worker sends.  A mark travels as the worker id of LitServe's own "started" message.  It is an integer with two
more attributes, so that a server that is not instrumented reads it as the worker id.
"""

from __future__ import annotations

import functools
import inspect
from time import time_ns
from typing import Any

from litserve import Callback
from litserve.loops.base import LitLoop
from litserve.utils import LitAPIStatus, LoopResponseType

from otel_lifecycle._guard import guarded

__all__ = ["LitAPIStatus", "LoopResponseType", "Mark", "WorkerMarks"]


# A subclass of int, because LitServe's message has no field to spare.  Pickle keeps its attributes, and all that
# LitServe does with it works for an int.
class Mark(int):
    """A worker's number, its API, and what happened to a request in it when (epoch nanoseconds)."""

    event: str
    at_ns: int
    api: str

    @classmethod
    def of(cls, worker_id: int | None, event: str, api: str) -> Mark:
        """Return the mark of what happens now."""
        mark = cls(worker_id or 0)
        mark.api = api
        # The wall clock, because another process reads it and record() takes epoch nanoseconds.
        mark.event, mark.at_ns = event, time_ns()
        return mark


class WorkerMarks(Callback):  # type: ignore[misc]  # litserve has no types
    """Marks, in a worker, when a request leaves the queue and when its input enters the model."""

    def __init__(self) -> None:
        self._api = ""
        self._taken: dict[str, tuple[Any, int, Any, int | None]] = {}

    def on_before_setup(self, *arguments: Any, lit_api: Any = None, **named: Any) -> None:
        """Look at what this process sends from now on; it works for one API."""
        self._api = str(getattr(lit_api, "api_path", ""))
        original = LitLoop.put_response
        signature = inspect.signature(original)

        @functools.wraps(original)
        def put_response(*arguments: Any, **named: Any) -> None:
            guarded("a worker's message", self._look, signature, arguments, named)
            original(*arguments, **named)

        # On the class, because a callback does not get the loop that calls it.  Never undone: the process ends with it.
        LitLoop.put_response = put_response

    def _look(self, signature: inspect.Signature, arguments: Any, named: Any) -> None:
        # By name: the arguments may come by position or by keyword.
        message = signature.bind(*arguments, **named).arguments
        uid = message["uid"]
        if message["status"] == LitAPIStatus.START:
            where = message["transport"], message["response_queue_id"]
            self._taken[uid] = (*where, message["response_type"], message["self"].worker_id)
            self._send(uid, "admit")
        else:
            self._taken.pop(uid, None)

    def on_before_predict(self, *arguments: Any, lit_api: Any = None, **named: Any) -> None:
        """The requests taken from the queue since the last time are the ones that enter the model now.

        Where a worker decodes several at once, LitServe does not say which; then none is marked.
        """
        if not getattr(lit_api, "enable_async", True):
            for uid in list(self._taken):
                guarded("a worker's mark", self._send, uid, "input_ready")
        self._taken.clear()

    def _send(self, uid: str, event: str) -> None:
        transport, queue, kind, worker_id = self._taken[uid]
        transport.send((uid, ((), LitAPIStatus.START, kind, Mark.of(worker_id, event, self._api))), consumer_id=queue)
