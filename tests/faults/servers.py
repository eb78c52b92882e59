"""Real HTTP servers in processes of their own, on a port that is open before they are."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from gunicorn.config import KNOWN_SETTINGS

from tests.faults.running import PROGRAMS, command, started
from tests.support.otlp_receiver import OtlpReceiver

WORKERS = 4
CLIENTS = 8


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server that runs: the socket it listens on, its process, and the file its log goes to."""

    listening: socket.socket
    process: subprocess.Popen[str]
    log: Path

    @property
    def port(self) -> int:
        """The port, while the server runs."""
        return int(self.listening.getsockname()[1])

    def get(self, query: str = "") -> str | None:
        """Ask once and read the answer to its end; return the process that gave it, None if it was cut off."""
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            try:
                connection.request("GET", f"/?{query}")
                answer = connection.getresponse()
                answer.read()
            except (OSError, HTTPException):
                return None
            return answer.getheader("x-pid")

    def load(self, count: int, query: str = "", clients: int = CLIENTS) -> list[str | None]:
        """Ask that many times from several clients at once; return who answered."""
        with ThreadPoolExecutor(clients) as pool:
            return list(pool.map(self.get, [query] * count))

    def terminate(self, seconds: float = 60) -> int:
        """Send SIGTERM and return the exit status; AssertionError if it does not end."""
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired as late:
            raise AssertionError(f"still running; its log: {self.log.read_text()[-2000:]}") from late
        # Those still waiting to be accepted are cut off now; the test holds the socket open besides the server.
        self.listening.close()
        return status


def uvicorn(fd: int, workers: int = 1) -> list[str]:
    """Return the command line of uvicorn on a socket that is open already."""
    options = [f"--fd={fd}", f"--workers={workers}", "--log-level=warning"]
    return [sys.executable, "-m", "uvicorn", f"{PROGRAMS}.web:asgi", *options]


def gunicorn(fd: int, *options: str, app: str = "wsgi") -> list[str]:
    """Return the command line of gunicorn with four workers, on a socket that is open already."""
    fixed = [f"--bind=fd://{fd}", f"--workers={WORKERS}", *options]
    if any("--no-control-socket" in (setting.cli or ()) for setting in KNOWN_SETTINGS):
        # Newer ones open a socket in the user's home.
        fixed.append("--no-control-socket")
    return [sys.executable, "-m", "gunicorn", f"{PROGRAMS}.web:{app}", *fixed]


KINDS: dict[str, Callable[[int], list[str]]] = {
    "uvicorn.run": lambda fd: command("run_uvicorn", fd),
    "uvicorn": uvicorn,
    "uvicorn, 4 workers": lambda fd: uvicorn(fd, WORKERS),
    "gunicorn": lambda fd: gunicorn(fd, "--threads=2"),
    "gunicorn, preloaded": lambda fd: gunicorn(fd, "--preload"),
    "gunicorn, post_fork": lambda fd: gunicorn(fd, "--preload", f"--config=python:{PROGRAMS}.post_fork"),
}


@contextmanager
def serving(receiver: OtlpReceiver, kind: str, log: Path, **variables: Any) -> Iterator[Server]:
    """Run a server of a kind until the block is left."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listening:
        listening.set_inheritable(True)
        argv = KINDS[kind](listening.fileno())
        with started(receiver, argv, log, inherit=(listening.fileno(),), **variables) as process:
            yield Server(listening=listening, process=process, log=log)
