"""Ready callbacks for memory and devices: the real /proc, the real nvidia-ml-py on a driver of the test's own."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml  # type: ignore[import-untyped]  # it has no types
import pytest

import otel_lifecycle as lifecycle
from otel_lifecycle import resources
from tests.support.otlp_receiver import HttpReceiver

MIB = 1024 * 1024
DEVICES = (("GPU-aaaa-1", "Large Card", 7 * MIB, 80), ("GPU-bbbb-2", "Small Card", 3 * MIB, None))
"""UUID, name, bytes used and percent busy of the driver's devices; None: it does not tell."""

NOT_FOUND, NOT_SUPPORTED = 6, 3


class Driver:
    """What nvidia-ml-py calls instead of the driver's library: the same functions, over :data:`DEVICES`."""

    def __init__(self) -> None:
        self.opened = 0
        self.handles = [ctypes.create_string_buffer(8) for _ in DEVICES]

    def _index(self, handle: Any) -> int:
        address = ctypes.cast(handle, ctypes.c_void_p).value
        return [ctypes.addressof(mine) for mine in self.handles].index(address or 0)

    def _give(self, index: int, out: Any) -> int:
        if not 0 <= index < len(DEVICES):
            return NOT_FOUND
        out._obj.contents = ctypes.cast(self.handles[index], type(out._obj)).contents
        return 0

    def nvmlInitWithFlags(self, flags: int) -> int:  # noqa: N802  # the library's names
        """Open."""
        self.opened += 1
        return 0

    def nvmlDeviceGetCount_v2(self, out: Any) -> int:  # noqa: N802
        """Count."""
        out._obj.value = len(DEVICES)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, out: Any) -> int:  # noqa: N802
        """Find by index."""
        return self._give(index.value, out)

    def nvmlDeviceGetHandleByUUID(self, uuid: Any, out: Any) -> int:  # noqa: N802
        """Find by the whole UUID."""
        known = [row[0].encode() for row in DEVICES]
        return self._give(known.index(uuid.value) if uuid.value in known else -1, out)

    def nvmlDeviceGetUUID(self, handle: Any, buffer: Any, size: Any) -> int:  # noqa: N802
        """Tell the UUID."""
        buffer.value = DEVICES[self._index(handle)][0].encode()
        return 0

    def nvmlDeviceGetName(self, handle: Any, buffer: Any, size: Any) -> int:  # noqa: N802
        """Tell the name."""
        buffer.value = DEVICES[self._index(handle)][1].encode()
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, out: Any) -> int:  # noqa: N802
        """Tell the memory in use."""
        out._obj.used = DEVICES[self._index(handle)][2]
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle: Any, out: Any) -> int:  # noqa: N802
        """Tell how busy it was, if it does."""
        busy = DEVICES[self._index(handle)][3]
        out._obj.gpu = busy or 0
        return NOT_SUPPORTED if busy is None else 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Put the driver under nvidia-ml-py."""
    fake = Driver()
    monkeypatch.setattr(pynvml, "nvmlLib", fake)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


def about(index: int) -> dict[str, str]:
    """Return the attributes of a device."""
    return {"hw.type": "gpu", "hw.id": DEVICES[index][0], "hw.name": DEVICES[index][1]}


def test_devices_by_the_driver(driver: Driver) -> None:
    """Memory of every device in bytes, utilization as a share; a device that does not tell is absent; opened once."""
    devices = resources.CudaDevices()
    assert devices.memory() == [(7 * MIB, about(0)), (3 * MIB, about(1))]
    assert devices.utilization() == [(0.8, about(0))]
    assert driver.opened == 1


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("1", [1]),
        ("1,0", [1, 0]),
        ("GPU-bbbb", [1]),
        ("0,7,1", [0]),
        ("-1", []),
        ("", []),
        ("GPU-cccc,0", []),
        ("nonsense", []),
    ],
)
def test_devices_that_cuda_hides_are_absent(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, visible: str, expected: list[int]
) -> None:
    """CUDA_VISIBLE_DEVICES by index or by UUID, up to the first entry that does not exist."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert resources.CudaDevices().memory() == [(DEVICES[index][2], about(index)) for index in expected]


def test_no_driver_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real library, which is not there, or one that is not installed: no sample, no error."""
    missing = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
    monkeypatch.setattr(pynvml, "_LoadNvmlLibrary", lambda: pynvml._nvmlCheckReturn(missing))
    without_driver = resources.CudaDevices()
    assert (without_driver.memory(), without_driver.utilization()) == ([], [])
    monkeypatch.setitem(sys.modules, "pynvml", None)
    without_package = resources.CudaDevices()
    assert (without_package.memory(), without_package.utilization()) == ([], [])


@pytest.mark.skipif(not resources.STATM.exists(), reason="only Linux has /proc")
def test_process_memory_follows_the_process() -> None:
    """64 MiB written to are 64 MiB more, within what else the process does in between."""
    (before, attributes), *others = resources.process_memory()
    with mmap.mmap(-1, 64 * MIB) as block:
        block.write(b"x" * (64 * MIB))
        ((after, _),) = resources.process_memory()
    assert (attributes, others) == ({"hw.type": "memory"}, [])
    assert 56 * MIB < after - before < 160 * MIB


def test_process_memory_without_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where there is no /proc psutil tells; without psutil nothing does."""
    monkeypatch.setattr(resources, "STATM", tmp_path / "statm")
    told = SimpleNamespace(Process=lambda: SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=5 * MIB)))
    monkeypatch.setitem(sys.modules, "psutil", told)
    assert resources.process_memory() == [(5 * MIB, {"hw.type": "memory"})]
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert resources.process_memory() == []


@pytest.mark.parametrize("content", ["", "12", "a b c"])
def test_process_memory_of_a_strange_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str) -> None:
    """A file of another form is treated as no memory, not as an error."""
    (tmp_path / "statm").write_text(content)
    monkeypatch.setattr(resources, "STATM", tmp_path / "statm")
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert resources.process_memory() == []


def test_devices_are_found_anew_in_a_child(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Handles of the parent's library are not used in another process."""
    devices = resources.CudaDevices()
    devices.memory()
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    assert devices.memory() == [(7 * MIB, about(0)), (3 * MIB, about(1))]
    assert driver.opened == 2


@pytest.mark.usefixtures("driver", "fresh_globals")
def test_ready_callbacks_at_the_collector(otlp_http: HttpReceiver) -> None:
    """``configure(resources=ready())`` with one of the app's own: all of it arrives."""
    callbacks: dict[str, Callable[[], Any]] = {**resources.ready(), "cache_usage": lambda: 0.25}
    lifecycle.configure(endpoint=otlp_http.endpoint, resources=callbacks)
    lifecycle.shutdown()
    used = {point["attributes"].get("hw.id"): point for point in otlp_http.points("inference.memory.used")}
    busy = otlp_http.points("inference.device.utilization")
    cache = otlp_http.points("inference.cache.usage")
    assert {name: (point["value"], point["unit"]) for name, point in used.items() if name} == {
        "GPU-aaaa-1": (7 * MIB, "By"),
        "GPU-bbbb-2": (3 * MIB, "By"),
    }
    assert used[None]["attributes"] == {"hw.type": "memory"}
    assert [(point["value"], point["attributes"]) for point in busy] == [(0.8, about(0))]
    assert [(point["value"], point["attributes"]) for point in cache] == [(0.25, {})]
