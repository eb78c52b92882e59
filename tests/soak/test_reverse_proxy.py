"""A gigabyte through the reverse proxy to a slow reader: nothing of it may pile up."""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

GIGABYTE = 1 << 30
PIECE = 1 << 16
ALLOWED = 1 << 20

ENGINE = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
connection, _ = server.accept()
connection.recv(65536)
head = b"HTTP/1.1 200 OK\\r\\ncontent-type: application/octet-stream\\r\\ncontent-length: %d\\r\\n\\r\\n"
connection.sendall(head % SIZE)
for _ in range(SIZE // 65536):
    connection.sendall(bytes(65536))
connection.recv(1)
"""

PROXY = """
import resource, socket, sys
import uvicorn
from otel_lifecycle.integrations.reverse_proxy import proxy_app
server = socket.create_server(("127.0.0.1", 0))
app = proxy_app("http://127.0.0.1:" + sys.argv[1])
peaks = []

async def measured(scope, receive, send):
    async def noting(message):
        await send(message)
        if message["type"] == "http.response.body":
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
            if not message.get("more_body"):
                # The first tenth warms up: buffers of the sockets, the first allocations of the parser.
                print(peaks[-1] - peaks[len(peaks) // 10], flush=True)
    await app(scope, receive, noting)

print(server.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(measured, log_level="error", lifespan="off")).run([server])
"""


def started(program: str, *arguments: str) -> tuple[subprocess.Popen[str], int]:
    """Start a program that says its port first."""
    command = [sys.executable, "-c", program, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def test_a_gigabyte_to_a_slow_reader_stays_within_a_mebibyte() -> None:
    """The proxy reads from the engine only what the client has taken; its peak memory does not grow."""
    engine, engine_port = started(ENGINE.replace("SIZE", str(GIGABYTE)))
    proxy, proxy_port = started(PROXY, str(engine_port))
    try:
        with socket.create_connection(("127.0.0.1", proxy_port)) as client:
            client.sendall(b"GET /file HTTP/1.1\r\nhost: x\r\n\r\n")
            head, _, body = client.recv(PIECE).partition(b"\r\n\r\n")
            received = len(body)
            for reads in itertools.count():
                if received >= GIGABYTE:
                    break
                if reads % 16 == 0:
                    # The engine could send a thousand times as fast: whoever reads ahead holds all of it.
                    time.sleep(0.001)
                received += len(client.recv(PIECE))
        assert head.startswith(b"HTTP/1.1 200")
        assert proxy.stdout is not None
        assert int(proxy.stdout.readline()) < ALLOWED
    finally:
        for process in (proxy, engine):
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
