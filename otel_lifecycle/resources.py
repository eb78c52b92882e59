"""Ready callbacks for ``configure(resources=...)``: memory of the process, memory and utilization of CUDA devices.

    lifecycle.configure(resources=resources.ready())
    lifecycle.configure(resources={**resources.ready(), "cache_usage": engine.cache_usage})

They run when metrics are collected, never on a serving thread.  What cannot be read is absent, never 0: without Linux
and without psutil there is no process memory; without the package nvidia-ml-py, a driver or a device there are no
devices.  The attributes are OpenTelemetry's own: ``hw.type`` (``memory`` or ``gpu``), and of a device ``hw.id`` (its
UUID) and ``hw.name``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

Sample = tuple[float, dict[str, str]]
"""A value and its attributes."""

HW_TYPE: Final = "hw.type"
HW_ID: Final = "hw.id"
HW_NAME: Final = "hw.name"

STATM: Final = Path("/proc/self/statm")
"""Pages of this process: total, resident, shared, ..."""


def ready() -> dict[str, Callable[[], list[Sample]]]:
    """Return the callbacks there are: ``memory_used`` (bytes) and ``device_utilization`` (share of time, in [0, 1])."""
    devices = CudaDevices()
    return {
        "memory_used": lambda: process_memory() + devices.memory(),
        "device_utilization": devices.utilization,
    }


def process_memory() -> list[Sample]:
    """Return the resident set size of this process in bytes; empty where it cannot be read.

    Source: ``/proc/self/statm`` on Linux, which costs no dependency; elsewhere psutil, if it is installed.  Model files
    mapped into memory are part of it as far as they are resident.
    """
    resident = _resident_by_proc()
    if resident is None:
        resident = _resident_by_psutil()
    return [] if resident is None else [(resident, {HW_TYPE: "memory"})]


def _resident_by_proc() -> int | None:
    try:
        pages = int(STATM.read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _resident_by_psutil() -> int | None:
    psutil = _optional("psutil")
    return None if psutil is None else int(psutil.Process().memory_info().rss)


def _optional(name: str) -> Any:
    """Return a module that need not be installed; None if it is not, or does not load."""
    try:
        return import_module(name)
    # OSError: a package whose shared library cannot be loaded.
    except (ImportError, OSError):
        return None


class CudaDevices:
    """The CUDA devices this process may use, read through nvidia-ml-py.

    ``CUDA_VISIBLE_DEVICES`` applies: indices (in PCI order), UUIDs or the beginnings of UUIDs; what follows an entry
    that does not exist is ignored, as CUDA does.  The library is loaded at the first reading, anew in a forked child.
    """

    def __init__(self) -> None:
        self._pid = 0
        self._nvml: Any = None
        self._devices: list[tuple[Any, dict[str, str]]] = []

    def memory(self) -> list[Sample]:
        """Return the bytes in use on each device, by whichever process; a device that does not tell is absent."""
        return self._read(lambda nvml, handle: nvml.nvmlDeviceGetMemoryInfo(handle).used)

    def utilization(self) -> list[Sample]:
        """Return the share of the driver's last sample period in which each device was busy, in [0, 1].

        A device that does not tell is absent; a MIG slice is one.
        """
        return self._read(lambda nvml, handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)

    def _read(self, read: Callable[[Any, Any], float]) -> list[Sample]:
        # The handles of NVML do not survive a fork.
        if self._pid != os.getpid():
            self._open()
        samples: list[Sample] = []
        for handle, attributes in self._devices:
            try:
                # One device that fails, for example a MIG slice without this figure, must not hide the others.
                samples.append((read(self._nvml, handle), attributes))
            except self._nvml.NVMLError:
                continue
        return samples

    def _open(self) -> None:
        """Find the devices, once a process: a driver that is not there does not come while the process lives."""
        self._pid, self._devices = os.getpid(), []
        self._nvml = nvml = _optional("pynvml")
        if nvml is None:
            return
        try:
            nvml.nvmlInit()
            self._devices = [(handle, _attributes(nvml, handle)) for handle in _visible(nvml)]
        except nvml.NVMLError:
            return


def _visible(nvml: Any) -> Iterator[Any]:
    """Yield the handles of the devices that CUDA_VISIBLE_DEVICES leaves to this process."""
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        yield from handles
        return
    for entry in chosen.split(","):
        handle = _find(nvml, handles, entry.strip())
        if handle is None:
            return
        yield handle


def _find(nvml: Any, handles: list[Any], entry: str) -> Any:
    """Return the device that an entry of CUDA_VISIBLE_DEVICES names; None if there is none."""
    if entry.lstrip("-").isdigit():
        return handles[int(entry)] if 0 <= int(entry) < len(handles) else None
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    for handle in handles:
        if nvml.nvmlDeviceGetUUID(handle).startswith(entry):
            return handle
    try:
        # A MIG slice is found by its UUID only; the list by index has whole devices.
        return nvml.nvmlDeviceGetHandleByUUID(entry)
    except nvml.NVMLError:
        return None


def _attributes(nvml: Any, handle: Any) -> dict[str, str]:
    attributes = {HW_TYPE: "gpu"}
    for name, read in ((HW_ID, nvml.nvmlDeviceGetUUID), (HW_NAME, nvml.nvmlDeviceGetName)):
        try:
            attributes[name] = str(read(handle))
        except nvml.NVMLError:
            continue
    return attributes
