"""The servers of ``run`` and ``live``, from the first port to the last message."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import uvicorn
from grpc import aio

from otel_lifecycle._live.grpc_service import grpc_server
from otel_lifecycle._live.guard import AccessRule
from otel_lifecycle._live.receiver import Receiver
from otel_lifecycle._live.stream import Status
from otel_lifecycle._live.web import LiveSite
from otel_lifecycle._table.errors import Unusable

QUIET_S: Final = 0.3
"""After this long without a message since the command's end, nothing more is expected."""
PAGES_S: Final = 2
"""Seconds that open pages have to take the last event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSettings:
    """Where to listen; port 0 is any free one.  ``title`` is the page's title."""

    host: str = "127.0.0.1"
    port: int = 0
    grpc_port: int = 0
    token: str | None = None
    shape: str = "default"
    title: str = "otel-lifecycle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What listens where."""

    host: str
    port: int
    grpc_port: int
    token: str | None

    @property
    def http(self) -> str:
        """The OTLP/HTTP endpoint, which is the page's address too."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)  # noqa: S104 - compared, not bound
        return f"http://{f'[{host}]' if ':' in host and host[0] != '[' else host}:{self.port}"

    @property
    def page(self) -> str:
        """The address to open in a browser."""
        return f"{self.http}/" + (f"?token={self.token}" if self.token else "")


class _HttpServer(uvicorn.Server):
    """Leaves signals to the command that is watched."""

    @contextlib.contextmanager
    # uvicorn raises a captured signal again after serving, which would end us before the command has ended.
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(receiver: Receiver, status: Status, settings: LiveSettings) -> AsyncIterator[Served]:
    """Serve OTLP over gRPC and HTTP, and the page; Unusable if a port cannot be had."""
    guard = AccessRule.of(settings.host, settings.token)
    # We bind ourselves: uvicorn exits the process if the port is taken, and does not tell which port 0 became.
    with _bound(settings) as bound:
        grpc = grpc_server(receiver, guard)
        grpc_port = _grpc_port(grpc, settings)
        port = bound.getsockname()[1]
        address = f"OTLP: HTTP on port {port}, gRPC on port {grpc_port} of {settings.host}"
        site = LiveSite(receiver, status, shape=settings.shape, title=settings.title, address=address)
        options = uvicorn.Config(
            site.app(guard),
            log_level="error",
            access_log=False,
            lifespan="off",
            # Always installed with uvicorn.  The faster parser is optional, and all installations must behave alike.
            http="h11",
            ws="none",
            timeout_graceful_shutdown=PAGES_S,
        )
        http = _HttpServer(options)
        task = asyncio.create_task(http.serve(sockets=[bound]))
        await grpc.start()
        # The socket listens once the server has started; uvicorn has no event for that.
        while not http.started and not task.done():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        try:
            yield Served(host=settings.host, port=port, grpc_port=grpc_port, token=settings.token)
        finally:
            # Before the server stops: every open page is still connected and gets its last event.
            status.end(status.ended or "stopped")
            http.should_exit = True
            await grpc.stop(0.5)
            await task


@contextlib.contextmanager
def _bound(settings: LiveSettings) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as bound:
        # The port of a run that ended a moment ago is in TIME_WAIT.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((settings.host, settings.port))
        except OSError as error:
            raise Unusable(_taken(settings.port, "--port", error.strerror or str(error))) from error
        yield bound


def _grpc_port(server: aio.Server, settings: LiveSettings) -> int:
    # gRPC takes an IPv6 address only in brackets.
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    try:
        port = server.add_insecure_port(f"{host}:{settings.grpc_port}")
    except RuntimeError as error:
        raise Unusable(_taken(settings.grpc_port, "--grpc-port", "it cannot be bound")) from error
    # Older releases of gRPC return 0 where newer ones raise.
    if not port:
        raise Unusable(_taken(settings.grpc_port, "--grpc-port", "it cannot be bound"))
    return int(port)


def _taken(port: int, option: str, reason: str) -> str:
    return f"port {port}: {reason}; a Collector may have it. Choose another by {option}, 0 for any free one"


async def until_quiet(receiver: Receiver) -> None:
    """Return once no message has come for a while."""
    # No message yet: at least one wait, since the last batch may still be on its way when its sender has ended.
    before = -1
    while before != receiver.messages:
        before = receiver.messages
        await asyncio.sleep(QUIET_S)


async def until_stopped() -> None:
    """Return at Ctrl-C or SIGTERM."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    try:
        await stopped.wait()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
