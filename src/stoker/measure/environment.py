"""What this process runs on: hardware, versions, limits, disks, and the load by other processes.

Invariant: what cannot be known here is None and is left out, never a zero and never a crash.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import stoker
from stoker.data.loading.chunk_call import WHY_NOT
from stoker.host import proc
from stoker.host.counters import Machine, kernel_text
from stoker.host.limits import usable_cores, usable_memory

PACKAGES = {
    "torch": ("torch",),
    "numpy": ("numpy",),
    "opencv": ("opencv-python-headless", "opencv-python"),
    "simplejpeg": ("simplejpeg",),
    "timm": ("timm",),
}
"""Packages whose versions are recorded, and the names under which each may be installed."""
DRIVER = "/proc/driver/nvidia/version"
_TIME_ERROR = 5


@dataclass(frozen=True)
class Gpu:
    name: str
    bytes: int
    capability: tuple[int, int]

    @property
    def tensor_cores(self) -> bool:
        return self.capability >= (7, 0)


@dataclass(frozen=True)
class FreeSpace:
    """Free space in the file system of one path. The names are keys of `doctor --json`."""

    what: str
    """What is stored there."""
    path: str
    free: int
    inodes: int | None
    """Free inodes; None where the file system does not count them."""
    writable: bool


@dataclass(frozen=True)
class Environment:
    """What a machine offers to this process. The names are keys of `doctor --json`."""

    versions: dict[str, str]
    processor: str
    cores: int
    """Cores that this process may use."""
    machine_cores: int | None
    avx2: bool | None
    memory: int
    region: str
    """Why the compiled extra does not make batches; empty where it does."""
    shm: int | None = None
    open_files: int | None = None
    synchronised: bool | None = None
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    rooms: tuple[FreeSpace, ...] = ()


def environment_here(folders: Sequence[tuple[str, Path]]) -> Environment:
    """The environment of this process; `folders` are what is stored, and where."""
    gpus = tuple(gpus_here())
    return Environment(
        versions=versions(),
        processor=processor_name(),
        cores=usable_cores(),
        machine_cores=os.cpu_count(),
        avx2=has_avx2(),
        memory=usable_memory(),
        region=WHY_NOT,
        shm=size_of_disk(Path("/dev/shm")),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        synchronised=clock_is_synchronised(),
        gpus=gpus,
        driver=nvidia_driver() if gpus else None,
        cuda=torch.version.cuda if gpus else None,
        cudnn=cudnn_version() if gpus else None,
        rooms=tuple(space for what, path in folders if (space := free_space(what, path))),
    )


def attempt_environment(device: torch.device) -> dict[str, Any]:
    """What an attempt runs on, as its first event records it."""
    on_gpu = device.type == "cuda"
    return {
        "stoker": stoker.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "process": os.getpid(),
        **{name: versions().get(name) for name in ("opencv", "simplejpeg", "timm")},
        "isa": None if on_gpu else torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(device) if on_gpu else processor_name(),
        "driver": nvidia_driver() if on_gpu else None,
        "cudnn": cudnn_version() if on_gpu else None,
        "threads": torch.get_num_threads(),
        "cores": usable_cores(),
        "command": sys.argv,
    }


def versions() -> dict[str, str]:
    numbers = {"stoker": stoker.__version__, "python": platform.python_version()}
    for name, packages in PACKAGES.items():
        for package in packages:
            with suppress(PackageNotFoundError):
                numbers.setdefault(name, version(package))
    return numbers


def gpus_here() -> list[Gpu]:
    if not torch.cuda.is_available():
        return []
    devices = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [Gpu(gpu.name, gpu.total_memory, (gpu.major, gpu.minor)) for gpu in devices]


def nvidia_driver() -> str | None:
    """The version of NVIDIA's kernel driver; None where it is not loaded."""
    return proc.driver_version(kernel_text(DRIVER))


def cudnn_version() -> str | None:
    number: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    if number is None:
        return None
    major, rest = divmod(number, 10_000 if number >= 90_000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def processor_name(path: str = "/proc/cpuinfo") -> str:
    return proc.processor(kernel_text(path)).get("model name") or platform.processor() or "CPU"


def has_avx2(path: str = "/proc/cpuinfo") -> bool | None:
    """Whether the processor has AVX2; None on another architecture, or where it is not known."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return None
    flags = proc.processor(kernel_text(path)).get("flags")
    return None if flags is None else "avx2" in flags.split()


def clock_is_synchronised() -> bool | None:
    """Whether the kernel keeps its clock synchronised; None where it does not tell."""
    if sys.platform != "linux":
        return None
    with suppress(OSError, AttributeError):
        # Larger than a struct timex; all zeros read the state and change nothing.
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(1024))
        return None if state < 0 else bool(state != _TIME_ERROR)
    return None


def size_of_disk(path: Path) -> int | None:
    with suppress(OSError):
        disk = os.statvfs(path)
        return disk.f_blocks * disk.f_frsize
    return None


def free_space(what: str, path: Path) -> FreeSpace | None:
    """The free space for a path that may not exist yet; None where it cannot be read."""
    folder = path.absolute()
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    with suppress(OSError):
        disk = os.statvfs(folder)
        inodes = disk.f_favail if disk.f_files else None
        free = disk.f_bavail * disk.f_frsize
        return FreeSpace(what, str(path), free, inodes, os.access(folder, os.W_OK))
    return None


def free_memory() -> int:
    """Bytes that this process can still allocate, by the machine's memory and its group's limit."""
    machine = Machine()
    levels = machine.read().levels
    machine.close()
    free = [int(levels["available_bytes"])] if "available_bytes" in levels else []
    if "limit_bytes" in levels:
        free.append(max(int(levels["limit_bytes"] - levels.get("used_bytes", 0.0)), 0))
    return min(free, default=usable_memory())


class OtherProcesses:
    """How many cores other processes have used since this was created."""

    def __init__(
        self, path: str = "/proc/stat", own_cpu_s: Callable[[], float] = time.process_time
    ) -> None:
        self._path, self._own_cpu_s = path, own_cpu_s
        self._ticks, self._own_s = self._read(), own_cpu_s()

    def _read(self) -> tuple[int, int] | None:
        """Ticks of all cores, and those that were idle."""
        ticks = proc.machine_ticks(kernel_text(self._path))
        return (ticks["all"], ticks["idle"] + ticks.get("iowait", 0)) if ticks else None

    def cores(self) -> float | None:
        """The mean number of cores; None where the kernel does not count."""
        now = self._read()
        if now is None or self._ticks is None or now[0] <= self._ticks[0]:
            return None
        total, idle = now[0] - self._ticks[0], now[1] - self._ticks[1]
        own = (self._own_cpu_s() - self._own_s) * os.sysconf("SC_CLK_TCK")
        return max(total - idle - own, 0.0) / total * (os.cpu_count() or 1)


def as_data(environment: Environment) -> dict[str, Any]:
    return {
        **vars(environment),
        "gpus": [vars(gpu) for gpu in environment.gpus],
        "rooms": [vars(space) for space in environment.rooms],
    }
