"""A way to a backend that is there while the backend is not: a connection waits until somebody listens behind it.

A gRPC client that is refused waits longer before each new attempt, up to two minutes, and no setting shortens that.
Where the time of a test is compressed, a backend would be back long before its client tries again.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Final

LOOPBACK: Final = "127.0.0.1"
PAUSE_S: Final = 0.1
CHUNK: Final = 65_536


class Relay:
    """Listens on a loopback port of its own and passes bytes on to another one, both ways."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._closed = threading.Event()
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections; those that wait for the backend end."""
        self._closed.set()
        self._listener.close()

    def _accept(self) -> None:
        # The listener is closed to end this thread.
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            while not self._closed.wait(PAUSE_S):
                with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, self._target)) as backend:
                    back = threading.Thread(target=_pass_on, args=(backend, client), daemon=True)
                    back.start()
                    _pass_on(client, backend)
                    back.join()
                    return


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    """Pass on what comes until either side has ended; then end both, so that the other direction ends, too."""
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK):
            target.sendall(data)
    for side in (source, target):
        with contextlib.suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)
