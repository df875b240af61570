"""What a machine did over time, from the rows of probes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from stoker.run.kinds import Event
from stoker.run.rows import time_of

_GPU = re.compile(r"gpus\.(\d{1,4})\.(busy|used_bytes|total_bytes|power_w|temperature_c)")
_LINK = re.compile(r"network\.(?!lo\.).+\.(rx|tx)_bytes")
"""Of all interfaces but the machine's own loopback."""


@dataclass(frozen=True)
class Usage:
    """One machine over about ten seconds. A number is None where it was not measured."""

    time: float
    """When this was written, in seconds since 1970."""
    step: int
    cores: float | None = None
    """Cores that this rank used."""
    busy: float | None = None
    """The share of all cores that was in use, by anyone."""
    steal: float | None = None
    """The share of the CPU time that the hypervisor gave to others."""
    read_s: float | None = None
    """Bytes a second that were read from disks."""
    write_s: float | None = None
    received_s: float | None = None
    """Bytes a second that came in over all links."""
    sent_s: float | None = None
    memory_bytes: float | None = None
    """Memory of this rank."""
    available_bytes: float | None = None
    """Memory of the machine that is free."""
    gpus: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Of each GPU: `busy`, `used_bytes`, `total_bytes`, `power_w`, `temperature_c`."""


def usage_of(row: Event) -> Usage:
    """What a row of probes says."""
    means: Mapping[str, float] = row["means"]
    seconds = means.get("seconds", 0.0)
    gpus: dict[int, dict[str, float]] = {}
    link = {"rx": 0.0, "tx": 0.0}
    has_link = False
    for name, value in means.items():
        gpu, figure = _place_of(name)
        if gpu is not None:
            gpus.setdefault(gpu, {})[figure] = value
        elif figure:
            link[figure] += value
            has_link = True

    def rate(total: float | None) -> float | None:
        return total / seconds if total is not None and seconds > 0 else None

    return Usage(
        time=time_of(row),
        step=row["step"],
        cores=means.get("cpu.own_cores"),
        busy=means.get("cpu.busy"),
        steal=means.get("cpu.steal"),
        read_s=rate(means.get("disk.read_bytes")),
        write_s=rate(means.get("disk.write_bytes")),
        received_s=rate(link["rx"]) if has_link else None,
        sent_s=rate(link["tx"]) if has_link else None,
        memory_bytes=means.get("memory.own_bytes"),
        available_bytes=means.get("memory.available_bytes"),
        gpus=gpus,
    )


@lru_cache(maxsize=4096)
def _place_of(name: str) -> tuple[int | None, str]:
    """The number of the GPU that a mean is about and its figure there; or no GPU, and which
    direction of a link; or neither."""
    if match := _GPU.fullmatch(name):
        return int(match[1]), match[2]
    match = _LINK.fullmatch(name)
    return None, match[1] if match else ""
