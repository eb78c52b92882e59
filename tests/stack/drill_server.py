"""One server of the drill: a process that is told its load line by line, and ends in order when its input ends.

``python -m tests.stack.drill_server NAME INSTANCE ENDPOINT`` reads one JSON document a line: ``play``, the names of
scripts to play in turn from then on; ``hold``, how many requests to leave in the queue; ``release``, which completes
them.  An empty INSTANCE means an id of its own.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from itertools import cycle
from typing import Final

from tests.stack.load import MIXED, PREFILL_BOUND, Script, Server
from tests.stack.overlay import SHORTER

RATE: Final = SHORTER / 5
"""Requests a second: 60 in what stands for five minutes, over the floor of 20."""
SCRIPTS: Final = {
    "prefill": PREFILL_BOUND,
    "mixed": MIXED,
    "decode": Script(gap=0.1, tokens=12),
    "queue": Script(queue=6.0, gap=0.1, tokens=12),
}


class Player:
    """Plays the scripts it was last given on a thread of its own."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._scripts: Iterator[Script] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._play, daemon=True)
        self._thread.start()

    def give(self, names: list[str]) -> None:
        """Play these from now on; nothing of none."""
        self._scripts = cycle([SCRIPTS[name] for name in names]) if names else None

    def _play(self) -> None:
        while not self._stop.wait(1 / RATE):
            scripts = self._scripts
            if scripts is not None:
                self._server.play(next(scripts))

    def stop(self) -> None:
        """Stop playing."""
        self._stop.set()
        self._thread.join()


def main(name: str, instance: str, endpoint: str) -> None:
    """Be one server until the input ends."""
    with Server(name, endpoint=endpoint, instance=instance or None) as server:
        player = Player(server)
        for line in sys.stdin:
            told = json.loads(line)
            player.give(told.get("play", []))
            for _ in range(told.get("hold", 0)):
                server.play(Script(end="leave", where="queue"))
            if told.get("release"):
                for request in server.open:
                    request.admit()
                    request.input_ready()
                    request.first_token()
                    request.complete()
                server.open.clear()
        player.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
