"""What the selftest runs on, and how fast bytes get to the GPU."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from stoker.doctor.selftest.rows import Measured, Setup
from stoker.host.gpu import pcie_link
from stoker.measure.environment import Environment, environment_here
from stoker.text import plural, size

COPIED_BYTES = 256 << 20
COPIES = 8


def measure_machine(setup: Setup) -> Measured:
    """Names and versions of everything that a result depends on."""
    facts = environment_here([])
    parts = [facts.processor, plural(facts.cores, "core"), f"{size(facts.memory)} of memory"]
    parts += [f"{name} {facts.versions[name]}" for name in ("python", "torch")]
    figures: dict[str, Any] = {"cores": facts.cores, "versions": facts.versions}
    if setup.on_gpu:
        names, more = gpu_parts(setup, facts)
        parts, figures = [*names, *parts], figures | more
    return Measured(", ".join(parts), figures=figures)


def gpu_parts(setup: Setup, facts: Environment) -> tuple[list[str], dict[str, Any]]:
    """Texts and figures about the first GPU and its libraries."""
    gpu = facts.gpus[0]
    properties: Any = torch.cuda.get_device_properties(setup.ranks.device)
    place = (properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id)
    nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    figures = {
        "gpu": gpu.name,
        "gpus": len(facts.gpus),
        "capability": list(gpu.capability),
        "driver": facts.driver,
        "cuda": facts.cuda,
        "cudnn": facts.cudnn,
        "nccl": nccl,
        "pcie": pcie_link(*place),
    }
    shown = ("capability", "driver", "cuda", "cudnn", "nccl", "pcie")
    named = {**figures, "capability": "{}.{}".format(*gpu.capability)}
    texts = [f"{name} {named[name]}" for name in shown if named[name] is not None]
    return [f"{plural(len(facts.gpus), 'GPU')}: {gpu.name}, {size(gpu.bytes)}", *texts], figures


def copy_gb_per_s(source: Tensor, target: Tensor) -> float:
    """GB a second from host to device, of the fastest of some copies."""
    seconds = []
    for _ in range(COPIES):
        torch.cuda.synchronize()
        began = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return source.numel() / min(seconds) / 1e9


def measure_copies(setup: Setup) -> Measured:
    """Copies from pinned and from pageable memory."""
    target = torch.empty(COPIED_BYTES, dtype=torch.uint8, device=setup.ranks.device)
    pageable = torch.zeros(COPIED_BYTES, dtype=torch.uint8)
    rates = [copy_gb_per_s(source, target) for source in (pageable.pin_memory(), pageable)]
    value = "pinned {:.1f} GB/s, pageable {:.1f} GB/s".format(*rates)
    figures = {"pinned_gb_per_s": rates[0], "pageable_gb_per_s": rates[1]}
    return Measured(value, "pinned at least pageable", rates[0] >= rates[1], figures)
