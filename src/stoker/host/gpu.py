"""Facts about the GPUs of this process, most of them from NVIDIA's management library.

Invariants: Stoker works without it. Without the library, its Python package (nvidia-ml-py) or a
device there are no facts. A query that a device refuses is not repeated. `busy` is the share of
time in which any kernel ran: it says nothing about efficiency.
"""

from __future__ import annotations

import errno
import importlib
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

THROTTLES = {
    0x2: "applications clocks setting",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clock setting",
}
"""Reasons for lower clocks, by bit. Bit 1, an idle GPU, is not one."""
SLOW = ("pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s")
"""Facts that the driver measures for a while before it answers; not read every time."""
MEANS = ("busy", "sm_clock_mhz", "power_w", *SLOW)
"""Facts whose mean is taken over time; of the others the largest value."""
Queries = dict[str, Callable[[], Any]]
UUIDS = ("GPU-", "MIG-")
"""How the UUID of a GPU, or of a part of one, begins."""
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 5e-5, 1e-3
"""Between two looks at an event: a wait that has been long may last a little longer."""


class Awaited(Protocol):
    """An event in the work of a device, such as `torch.cuda.Event`."""

    def query(self) -> bool: ...


def visible(count: int, environment: Mapping[str, str]) -> list[int | str]:
    """This process's GPUs, by number or name; only the local rank's if the environment names it.
    Numbers are right where CUDA counts by bus (CUDA_DEVICE_ORDER=PCI_BUS_ID) or GPUs are alike."""
    variable = environment.get("CUDA_VISIBLE_DEVICES")
    devices: list[int | str] = list(range(count))
    if variable is not None:
        names = [name.strip() for name in variable.split(",") if name.strip()]
        devices = [int(name) if name.isdigit() else name for name in names]
    rank = environment.get("LOCAL_RANK", "")
    if rank.isdigit() and int(rank) < len(devices):
        return [devices[int(rank)]]
    return devices


def gpus_at_hand(folder: str = "/dev", environment: Mapping[str, str] | None = None) -> int:
    """The number of NVIDIA GPUs that this process may use, whether or not CUDA works; 0 where
    CUDA_VISIBLE_DEVICES hides them all. Asks neither NVML nor CUDA."""
    chosen = (os.environ if environment is None else environment).get("CUDA_VISIBLE_DEVICES")
    if chosen is not None and not re.match(r"\s*(\d|GPU-|MIG-)", chosen):
        return 0
    paths = [path for path in Path(folder).glob("nvidia*") if path.name[6:].isdecimal()]
    return sum(may_open(path) for path in paths)


def usable_gpus(folder: str = "/dev", environment: Mapping[str, str] | None = None) -> list[str]:
    """The names of the GPUs that this process may use, as CUDA_VISIBLE_DEVICES takes them, each
    once. The list of the variable ends at the first name of no GPU, as for CUDA."""
    environment = os.environ if environment is None else environment
    count = gpus_at_hand(folder, environment)
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    names: list[str] = []
    for name in map(str, range(count)) if chosen is None else map(str.strip, chosen.split(",")):
        is_one = int(name) < count if re.fullmatch("[0-9]{1,4}", name) else name[:4] in UUIDS
        if not (count and is_one):
            break
        names.append(name)
    return list(dict.fromkeys(names))


def may_open(path: Path) -> bool:
    """Whether a device belongs to this process: a scheduler's control group denies others."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return error.errno not in (errno.EPERM, errno.ENOENT)
    return True


class Gpus:
    """The GPUs of this process. An error means fewer facts; nothing is raised."""

    def __init__(self, nvml: Any = None, environment: Mapping[str, str] | None = None) -> None:
        self._queries: list[tuple[int | str, Queries]] = []
        self._begun = False
        try:
            self._nvml = nvml = nvml or importlib.import_module("pynvml")
            nvml.nvmlInit()
            self._begun = True
            environment = os.environ if environment is None else environment
            devices = visible(nvml.nvmlDeviceGetCount(), environment)
        except Exception:
            return
        for device in devices:
            with suppress(Exception):
                kind = "Index" if isinstance(device, int) else "UUID"
                handle = getattr(nvml, f"nvmlDeviceGetHandleBy{kind}")(device)
                self._queries.append((device, queries_of(nvml, handle)))

    def read(self, slow: bool = True) -> list[dict[str, Any]]:
        """The facts of each GPU now; without the slow ones where `slow` is False."""
        readings = []
        for device, queries in self._queries:
            facts: dict[str, Any] = {"device": device}
            for name, query in list(queries.items()):
                if slow or name not in SLOW:
                    try:
                        facts[name] = query()
                    except Exception:
                        del queries[name]
            readings.append(facts)
        return readings

    def close(self) -> None:
        self._queries = []
        if self._begun:
            self._begun = False
            with suppress(Exception):
                self._nvml.nvmlShutdown()


def queries_of(nvml: Any, handle: Any) -> Queries:
    """The call that returns each fact of a device."""

    def throttles() -> list[str]:
        for kind in ("Event", "Throttle"):  # older drivers and packages know the second name only
            with suppress(Exception):
                bits = getattr(nvml, f"nvmlDeviceGetCurrentClocks{kind}Reasons")(handle)
                return [name for bit, name in THROTTLES.items() if bits & bit]
        raise LookupError("this device does not report why its clocks are throttled")

    def pcie(counter: str) -> int:
        return int(nvml.nvmlDeviceGetPcieThroughput(handle, getattr(nvml, counter))) * 1000

    return {
        "busy": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
        "used_bytes": lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).used),
        "total_bytes": lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        "sm_clock_mhz": lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "sm_clock_most_mhz": lambda: int(
            nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
        ),
        "throttles": throttles,
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        "temperature_c": lambda: int(
            nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
        ),
        "pcie_rx_bytes_per_s": lambda: pcie("NVML_PCIE_UTIL_RX_BYTES"),
        "pcie_tx_bytes_per_s": lambda: pcie("NVML_PCIE_UTIL_TX_BYTES"),
    }


def wait_for(event: Awaited, sleep: Callable[[float], None] = time.sleep) -> None:
    """Wait until an event has passed, asleep between two looks. `Event.synchronize` uses a core,
    and no signal is handled before it returns: never, if another rank is lost."""
    pause_s = SHORTEST_PAUSE_S
    while not event.query():
        sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def over_time(readings: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Readings of the same GPUs as one: mean or largest values, and the share of each throttle."""
    summaries = []
    for readings_of_gpu in zip(*readings, strict=False):
        facts: dict[str, Any] = {}
        for name in dict.fromkeys(name for reading in readings_of_gpu for name in reading):
            values = [reading[name] for reading in readings_of_gpu if name in reading]
            if name == "device":
                facts[name] = values[0]
            elif name == "throttles":
                counts = Counter(reason for reasons in values for reason in reasons)
                facts[name] = {r: round(counts[r] / len(values), 3) for r in sorted(counts)}
            else:
                facts[name] = round(fmean(values), 3) if name in MEANS else max(values)
        summaries.append(facts)
    return summaries


def pcie_link(domain: int, bus: int, device: int, root: str = "/sys/bus/pci/devices") -> str | None:
    """Speed and width of a GPU's link to the host now, such as `16.0 GT/s x16`; None where the
    kernel does not say. An idle GPU may have slowed its link down."""
    folder = Path(root) / f"{domain:04x}:{bus:02x}:{device:02x}.0"
    with suppress(OSError):
        speed, width = (
            (folder / f"current_link_{name}").read_text().strip() for name in ("speed", "width")
        )
        return f"{speed.removesuffix(' PCIe')} x{width}"
    return None
