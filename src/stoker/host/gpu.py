"""What NVIDIA's management library says about the GPUs of this process.

Invariants: nothing here is needed. Without the library, its Python package (nvidia-ml-py) or a
device there are no facts, and what a device refuses to tell is not asked again. `busy` is the share
of time in which any kernel ran: it says nothing about efficiency.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

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
"""Bits of the clocks' event reasons. Bit 1, an idle GPU, holds nothing back."""
THROTTLE_QUESTIONS = (
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
)
"""The same question by its newer name, and by the one that older drivers and packages know."""
SLOW = ("pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s")
"""What the driver watches for a while before it answers: not asked at every look."""
MEANS = ("busy", "sm_clock_mhz", "power_w", *SLOW)


def visible(count: int, environment: Mapping[str, str]) -> list[int | str]:
    """The GPUs that are this process's, by number or name: a local rank's own one, where the
    environment tells. Numbers are right where CUDA counts by bus (CUDA_DEVICE_ORDER=PCI_BUS_ID)
    or the GPUs are alike."""
    named = environment.get("CUDA_VISIBLE_DEVICES")
    devices: list[int | str] = list(range(count))
    if named is not None:
        words = [word.strip() for word in named.split(",") if word.strip()]
        devices = [int(word) if word.isdigit() else word for word in words]
    rank = environment.get("LOCAL_RANK", "")
    if rank.isdigit() and int(rank) < len(devices):
        return [devices[int(rank)]]
    return devices


class Gpus:
    """The GPUs of this process. Any error means fewer facts, never a failure."""

    def __init__(self, nvml: Any = None, environment: Mapping[str, str] | None = None) -> None:
        self._nvml = nvml
        self._asked: list[tuple[int | str, dict[str, Callable[[], Any]]]] = []
        self._begun = False
        try:
            self._nvml = nvml = nvml or importlib.import_module("pynvml")
            nvml.nvmlInit()
            self._begun = True
            devices = visible(
                nvml.nvmlDeviceGetCount(), os.environ if environment is None else environment
            )
        except Exception:
            return
        for device in devices:
            try:
                if isinstance(device, int):
                    handle = nvml.nvmlDeviceGetHandleByIndex(device)
                else:
                    handle = nvml.nvmlDeviceGetHandleByUUID(device)
            except Exception:
                continue
            self._asked.append((device, questions(nvml, handle)))

    def read(self, slow: bool = True) -> list[dict[str, Any]]:
        """What each GPU tells now."""
        return [{"device": device, **self._tell(asked, slow)} for device, asked in self._asked]

    def _tell(self, asked: dict[str, Callable[[], Any]], slow: bool) -> dict[str, Any]:
        told = {}
        for name, ask in list(asked.items()):
            if slow or name not in SLOW:
                try:
                    told[name] = ask()
                except Exception:
                    del asked[name]
        return told

    def close(self) -> None:
        self._asked = []
        if self._begun:
            self._begun = False
            try:
                self._nvml.nvmlShutdown()
            except Exception:
                return


def questions(nvml: Any, handle: Any) -> dict[str, Callable[[], Any]]:
    """Each fact and the call that tells it."""

    def throttles() -> list[str]:
        for question in THROTTLE_QUESTIONS:
            try:
                bits = getattr(nvml, question)(handle)
            except Exception:
                continue
            return [name for bit, name in THROTTLES.items() if bits & bit]
        raise LookupError("this device does not say what holds its clocks back")

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


def over_time(looks: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Several looks at the same GPUs as one: means of rates, the most of the rest, and the share
    of looks at which each reason held the clocks back."""
    told = []
    for of_one in zip(*looks, strict=False):
        one: dict[str, Any] = {}
        for name in dict.fromkeys(name for look in of_one for name in look):
            seen = [look[name] for look in of_one if name in look]
            if name == "device":
                one[name] = seen[0]
            elif name == "throttles":
                reasons = [reason for reasons in seen for reason in reasons]
                one[name] = {r: round(reasons.count(r) / len(seen), 3) for r in sorted({*reasons})}
            else:
                one[name] = round(fmean(seen), 3) if name in MEANS else max(seen)
        told.append(one)
    return told
