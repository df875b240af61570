"""What this process runs on, and what of it is odd enough to say.

Invariants: what cannot be known here is None and is left out, never a zero and never a crash. Only
what matters to Stoker is called odd: it loads with threads, so a small /dev/shm is no fault.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import stoker
from stoker.data.images.jpeg_region import WHY_NOT
from stoker.host.counters import Machine
from stoker.host.limits import usable_cores, usable_memory
from stoker.measure.machine import processor_name

PACKAGES = {
    "torch": ("torch",),
    "numpy": ("numpy",),
    "opencv": ("opencv-python-headless", "opencv-python"),
    "simplejpeg": ("simplejpeg",),
    "timm": ("timm",),
}
"""What we call a package, and the names under which it may be installed."""
LEAST_FILES = 1024
LEAST_INODES = 1000
CORES_A_GPU = 4
CHECKPOINTS = 3
_TIME_ERROR = 5
"""What the kernel answers where its clock follows no other."""


@dataclass(frozen=True)
class Gpu:
    name: str
    bytes: int
    capability: tuple[int, int]

    @property
    def tensor_cores(self) -> bool:
        return self.capability >= (7, 0)


@dataclass(frozen=True)
class Room:
    """A place in a file system."""

    what: str
    path: str
    free: int
    inodes: int | None
    """Free ones; None where the file system does not count them."""
    writable: bool


@dataclass(frozen=True)
class Surroundings:
    """What was found."""

    versions: dict[str, str]
    processor: str
    cores: int
    """That this process may use."""
    machine_cores: int | None
    avx2: bool | None
    memory: int
    region: str
    """Why crops are not decoded by region; empty where they are."""
    shm: int | None = None
    open_files: int | None = None
    synchronised: bool | None = None
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    rooms: tuple[Room, ...] = ()


@dataclass(frozen=True)
class Needs:
    """What is going to be asked of the machine, as far as it is known."""

    set_bytes: int | None = None
    checkpoint_bytes: int | None = None
    nodes: int = 1


@dataclass(frozen=True)
class Finding:
    """Something that will hurt, and what to do about it."""

    words: str
    action: str


def facts_here(places: Sequence[tuple[str, Path]]) -> Surroundings:
    """Look around; `places` are what is kept where."""
    gpus = tuple(gpus_here())
    return Surroundings(
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
        driver=driver_version() if gpus else None,
        cuda=torch.version.cuda if gpus else None,
        cudnn=cudnn_version() if gpus else None,
        rooms=tuple(room for what, path in places if (room := room_at(what, path)) is not None),
    )


def versions() -> dict[str, str]:
    found = {"stoker": stoker.__version__, "python": platform.python_version()}
    for name, packages in PACKAGES.items():
        for package in packages:
            with suppress(PackageNotFoundError):
                found.setdefault(name, version(package))
    return found


def gpus_here() -> list[Gpu]:
    if not torch.cuda.is_available():
        return []
    known = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return [Gpu(each.name, each.total_memory, (each.major, each.minor)) for each in known]


def driver_version(path: str = "/proc/driver/nvidia/version") -> str | None:
    with suppress(OSError):
        if found := re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", Path(path).read_text()):
            return found.group(1)
    return None


def cudnn_version() -> str | None:
    number: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    if number is None:
        return None
    major, rest = divmod(number, 10_000 if number >= 90_000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def has_avx2(path: str = "/proc/cpuinfo") -> bool | None:
    """None where that is no question: another kind of processor, or nobody tells."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return None
    with suppress(OSError):
        for line in Path(path).read_text().splitlines():
            if line.startswith("flags"):
                return "avx2" in line.split()
    return None


def clock_is_synchronised() -> bool | None:
    """Whether the kernel's clock follows another one; only asked, never set."""
    if sys.platform != "linux":
        return None
    with suppress(OSError, AttributeError):
        # More than a struct timex; all zero asks for the state and changes nothing.
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(1024))
        return None if state < 0 else bool(state != _TIME_ERROR)
    return None


def size_of_disk(path: Path) -> int | None:
    with suppress(OSError):
        found = os.statvfs(path)
        return found.f_blocks * found.f_frsize
    return None


def room_at(what: str, path: Path) -> Room | None:
    """The room where a path is, or would be."""
    there = path.absolute()
    while not there.is_dir() and there != there.parent:
        there = there.parent
    with suppress(OSError):
        found = os.statvfs(there)
        inodes = found.f_favail if found.f_files else None
        free = found.f_bavail * found.f_frsize
        return Room(what, str(path), free, inodes, os.access(there, os.W_OK))
    return None


def free_memory() -> int:
    """Bytes that this process could still take, beside what it holds: of the machine, and of what
    its group may use."""
    machine = Machine()
    levels = machine.read().levels
    machine.close()
    left = [int(levels["available_bytes"])] if "available_bytes" in levels else []
    if "limit_bytes" in levels:
        left.append(max(int(levels["limit_bytes"] - levels.get("used_bytes", 0.0)), 0))
    return min(left, default=usable_memory())


def oddities(facts: Surroundings, needs: Needs) -> list[Finding]:
    """What will hurt, the worst first."""
    found: list[Finding] = []
    for room in facts.rooms:
        found += odd_room(room, needs)
    if needs.set_bytes and needs.set_bytes > facts.memory:
        found.append(
            Finding(
                f"the set ({needs.set_bytes / 1e9:.1f} GB) is larger than the memory "
                f"({facts.memory / 1e9:.1f} GB): every epoch reads from the disk",
                "stoker pack --max-side with fewer pixels, or more memory",
            )
        )
    if facts.gpus and facts.cores < CORES_A_GPU * len(facts.gpus):
        found.append(
            Finding(
                f"{facts.cores} cores for {len(facts.gpus)} GPUs: decoding will keep them waiting",
                f"ask for at least {CORES_A_GPU} cores a GPU",
            )
        )
    if facts.machine_cores and facts.cores < facts.machine_cores:
        found.append(
            Finding(
                f"this process may use {facts.cores} of the {facts.machine_cores} cores here",
                "ask the scheduler or the container for more, if they are yours",
            )
        )
    if facts.avx2 is False:
        found.append(
            Finding(
                "the processor has no AVX2: decoding and networks run at a fraction of the usual",
                "another machine, or a virtual one that shows the processor it runs on",
            )
        )
    if facts.open_files is not None and 0 <= facts.open_files < LEAST_FILES:
        found.append(
            Finding(
                f"only {facts.open_files} files may be open at once", f"ulimit -n {4 * LEAST_FILES}"
            )
        )
    if facts.synchronised is False and needs.nodes > 1:
        found.append(
            Finding(
                "the clock follows no other: nodes will not agree on times", "start chrony or ntpd"
            )
        )
    return found


def odd_room(room: Room, needs: Needs) -> list[Finding]:
    if room.what != "runs":
        return []
    found = []
    if not room.writable:
        found.append(
            Finding(f"{room.path} cannot be written to", "stoker train --run DIR elsewhere")
        )
    if needs.checkpoint_bytes and room.free < CHECKPOINTS * needs.checkpoint_bytes:
        found.append(
            Finding(
                f"{room.free / 1e9:.1f} GB free for runs, and a checkpoint takes "
                f"{needs.checkpoint_bytes / 1e9:.1f} GB: {CHECKPOINTS} must fit",
                "free some, or stoker train --run DIR on another disk",
            )
        )
    if room.inodes is not None and room.inodes < LEAST_INODES:
        found.append(
            Finding(f"{room.path} has room for {room.inodes} more files only", "remove old runs")
        )
    return found


class Neighbours:
    """How busy everybody else kept the machine since this was made."""

    def __init__(self, path: str = "/proc/stat") -> None:
        self._path = path
        self._began, self._own = self._seen(), own_cpu_s()

    def _seen(self) -> tuple[float, float] | None:
        """Seconds of all cores that were used, and that were idle."""
        with suppress(OSError, ValueError, IndexError):
            first = Path(self._path).read_text().splitlines()[0].split()
            ticks = [int(word) for word in first[1:9]]
            unit = os.sysconf("SC_CLK_TCK")
            idle = ticks[3] + ticks[4]
            return (sum(ticks) - idle) / unit, idle / unit
        return None

    def cores(self) -> float | None:
        """Cores that others used on average; None where nobody counts."""
        now = self._seen()
        if now is None or self._began is None:
            return None
        used, idle = now[0] - self._began[0], now[1] - self._began[1]
        others = max(used - (own_cpu_s() - self._own), 0.0)
        elapsed = (used + idle) / (os.cpu_count() or 1)
        return others / elapsed if elapsed > 0 else None


def own_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def as_data(facts: Surroundings) -> dict[str, Any]:
    """What was found, as plain data."""
    plain = dict(vars(facts))
    plain["gpus"] = [vars(gpu) for gpu in facts.gpus]
    plain["rooms"] = [vars(room) for room in facts.rooms]
    return plain
