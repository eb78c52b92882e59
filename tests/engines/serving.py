"""An engine's server as a process group of its own: started, waited for, its CPU read, ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

import httpx
from typing_extensions import Self

from tests.support.otlp_receiver import OtlpReceiver

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_READY_S: Final = 1500.0
_STOP_S: Final = 60.0


class EngineFailed(RuntimeError):
    """The server did not start, or ended by itself; the message has the end of its log."""


def free_port() -> int:
    """Return a loopback port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def engine_environ(python: Path, receiver: OtlpReceiver, scratch: Path) -> dict[str, str]:
    """Return what every engine's server has in its environment: one thread, no hub, our exporter, and the meter."""
    return {
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).with_name("inject")), os.environ.get("PYTHONPATH", "")]),
        "ENGINE_METER": str(scratch),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_LIFECYCLE_METRIC_INTERVAL": "2",
        "OTEL_BSP_MAX_QUEUE_SIZE": "16384",
    }


class EngineServer:
    """A server and all the processes it starts.

    ``ready``: the path that answers 200 once requests are served.  The group is ended by SIGINT, as from a terminal, so
    that the server shuts down in order and exports its last spans; what remains is killed.
    """

    def __init__(self, command: Sequence[str], *, port: int, ready: str, environ: Mapping[str, str], log: Path) -> None:
        self.base = f"http://127.0.0.1:{port}"
        self._ready = ready
        self._log = log
        self._command = list(command)
        self._environ = {**os.environ, **environ}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process that was started."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        with self._log.open("wb") as sink:
            self._process = subprocess.Popen(
                self._command,
                stdout=sink,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self._environ,
                start_new_session=True,
            )
        try:
            self._wait_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def cpu_seconds(self) -> float:
        """Return the CPU time of the server and all processes it started so far, user and system."""
        return sum(map(_cpu, _descendants(self.pid)))

    def tail(self, lines: int = 40) -> str:
        """Return the end of the server's log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def _wait_ready(self) -> None:
        assert self._process is not None
        end = time.monotonic() + _READY_S
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise EngineFailed(f"the server ended with {self._process.returncode}:\n{self.tail()}")
            try:
                if httpx.get(self.base + self._ready, timeout=5).status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.5)
        raise EngineFailed(f"the server was not ready in {_READY_S:.0f} s:\n{self.tail()}")

    def _stop(self) -> None:
        process = self._process
        if process is None:
            return
        # The server's own process alone: a whole group interrupted at once would lose what its workers still owe it.
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _stat(pid: int) -> list[str]:
    """Return the fields of a process from its state on; none if it is gone."""
    try:
        # The name in brackets may hold spaces; the fields after it do not.
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return []


def _descendants(root: int) -> list[int]:
    """Return a process and all that it started, whatever group or session they are in."""
    parents = {int(path.name): _stat(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdigit()}
    found = [root]
    for pid in found:
        found += [child for child, fields in parents.items() if fields and int(fields[1]) == pid]
    return found


def _cpu(pid: int) -> float:
    """Return the CPU seconds of one process, and of its children that have ended."""
    fields = _stat(pid)
    return sum(int(fields[i]) for i in range(11, 15)) / _TICKS if fields else 0.0
