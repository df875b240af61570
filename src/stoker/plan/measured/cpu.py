"""The speed of training steps on a machine without a GPU, from a few measured ones.

Invariants: pure. A step's cost is a sum over what is counted on the meta device: multiply-adds by
kind of layer, bytes that each pass over memory moves, bytes of weights, and kernels. TYPICAL says
what each costs on one machine; a few measured cells of another machine scale all of them together,
and then each a little (STIFFNESS). A forecast is never negative and has its expected error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stoker.errors import BadRequest

if TYPE_CHECKING:
    from stoker.plan.gpu.operations import OperationCounts

TYPICAL: Mapping[str, float] = {
    "dense": 0.0296,
    "pointwise": 0.0323,
    "depthwise": 0.417,
    "bytes": 0.113,
    "weights": 0.378,
    "kernels": 0.138,
}
"""CPU seconds of one thread for each unit of `features`. Source: `benchmarks/plan_cpu.py --fit` on
`benchmarks/planning/cpu_cells.json`: 15 cells on a shared virtual machine, 2026-11-17."""
STIFFNESS = 3.0
"""How strongly one cost is held to the common scale, against an error of 100 % in one cell."""
EXPECTED_ERROR = 0.3
"""Half the width of the stated range, as a share. Of fitted models that were left out in turn and
forecast from the three measured cells, nine of ten were off by 30 % or less (42 % at most)."""
OPTIMIZER_PASSES = 5
"""Times that an SGD step reads or writes each weight, its gradient and its momentum."""
PRODUCTS = {
    "dense": "dense",
    "linear": "dense",
    "attention": "dense",
    "pointwise": "pointwise",
    "grouped": "pointwise",
    "depthwise": "depthwise",
}
"""Kinds of layers that multiply, and under which of them their multiply-adds are counted."""


@dataclass(frozen=True)
class MeasuredCell:
    """A step that was measured: its model and image size in counts, its batch and its speed."""

    counts: OperationCounts
    batch: int
    images_per_s: float


@dataclass(frozen=True)
class CpuForecast:
    """Images a second of training steps, and the range in which they are expected."""

    images_per_s: float
    low: float
    high: float


def features(counts: OperationCounts, batch: int) -> dict[str, float]:
    """What a training step in 32 bits does, by kind: 10^9 multiply-adds, 10^9 bytes, 10^3
    kernels."""
    sums = dict.fromkeys((*PRODUCTS.values(), "bytes", "weights", "kernels"), 0.0)
    for operation, times in counts.fp32.operations:
        if kind := PRODUCTS.get(operation.kind):
            sums[kind] += operation.macs * batch * times / 1e9
        sums["bytes"] += (operation.read + operation.written) * batch * times / 1e9
        sums["weights"] += operation.fixed * times / 1e9
        sums["kernels"] += times / 1e3
    sums["weights"] += 4 * OPTIMIZER_PASSES * counts.parameters / 1e9
    sums["kernels"] += counts.tensors / 1e3
    return sums


def typical_costs(counts: OperationCounts, batch: int) -> NDArray[np.float64]:
    """Seconds of each kind of work in a step on the machine of TYPICAL."""
    work = features(counts, batch)
    return np.array([TYPICAL[kind] * work[kind] for kind in TYPICAL])


def calibrate(cells: Sequence[MeasuredCell]) -> NDArray[np.float64]:
    """How many times as long as on the machine of TYPICAL each kind of work takes here. Raises
    BadRequest without a measured cell."""
    if not cells or not all(cell.images_per_s > 0 for cell in cells):
        raise BadRequest("no training step was measured: run 'stoker bench train' first")
    rows = np.array([typical_costs(cell.counts, cell.batch) for cell in cells])
    measured_s = np.array([cell.batch / cell.images_per_s for cell in cells])
    common = float(np.exp(np.mean(np.log(measured_s / rows.sum(axis=1)))))
    # Least squares of the relative errors, with each factor held to the common one.
    relative = rows * common / measured_s[:, None]
    errors = 1 - relative.sum(axis=1)
    normal = relative.T @ relative + STIFFNESS**2 * np.eye(rows.shape[1])
    change = np.linalg.solve(normal, relative.T @ errors)
    factors: NDArray[np.float64] = common * np.clip(1 + change, 0.1, 10.0)
    return factors


def forecast_cpu(counts: OperationCounts, batch: int, cells: Sequence[MeasuredCell]) -> CpuForecast:
    """The speed of a model, size and batch on the machine that the cells were measured on. Raises
    BadRequest without a measured cell."""
    seconds = float(typical_costs(counts, batch) @ calibrate(cells))
    speed = batch / seconds
    return CpuForecast(speed, speed * (1 - EXPECTED_ERROR), speed * (1 + EXPECTED_ERROR))
