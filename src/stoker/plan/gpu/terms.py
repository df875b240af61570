"""The terms of a step's time: seconds an image that each kind of operation takes at a GPU's peak.

Invariants: a term is arithmetic over peak arithmetic, bytes over peak bandwidth, or kernels
started; all are at least 0 and none depends on fitted figures. A coefficient says how many times
longer than at the peak a kind of operation takes.
"""

from __future__ import annotations

from collections import defaultdict
from math import ceil

import numpy as np

from stoker.plan.gpu.known import KnownGpu
from stoker.plan.gpu.operations import OperationCounts, PassCounts

PRODUCTS = ("dense", "pointwise", "depthwise", "grouped", "linear", "attention")
"""Kinds of operations that multiply: convolutions, layers and attention."""
MOVES = (
    *("batch_norm", "layer_norm", "softmax", "cast", "copy", "pool", "reduction", "activation"),
    "other",
)
"""Kinds of operations that only move and change numbers."""
ARITHMETIC = tuple(f"{kind} arithmetic" for kind in PRODUCTS)
BYTES = tuple(f"{kind} bytes" for kind in (*PRODUCTS, *MOVES))
STARTS = tuple(f"{kind} starts" for kind in PRODUCTS)
TERMS = (*ARITHMETIC, *BYTES, *STARTS, "starts", "parameters", "tensors")
FUSED = ("softmax", "cast", "attention")
"""Kinds whose bytes newer software does not move: it fuses them with their neighbours."""

LAUNCH_S = 1e-5
"""The unit of a started kernel: about what starting one takes."""
TILE = 8
"""Channels are padded to a multiple of this on tensor cores."""
WEIGHT_PASSES = 6
"""An SGD step reads and writes weights, gradients and momentum: six times 4 bytes a parameter."""


def padded(channels: int) -> float:
    """How many times more channels than these a tensor core multiplies."""
    return ceil(channels / TILE) * TILE / channels if channels else 1.0


def sums_of(counts: PassCounts, *, backward: bool = True) -> dict[str, float]:
    """Multiply-adds, bytes and kernels by kind: of a whole step, or of the forward pass alone."""
    sums: defaultdict[str, float] = defaultdict(float)
    for op, times in counts.operations:
        if op.backward and not backward:
            continue
        if op.kind in PRODUCTS:
            wide = 1.0 if op.kind == "depthwise" else padded(op.inputs) * padded(op.outputs)
            sums[f"{op.kind} arithmetic"] += times * op.macs * wide
            sums[f"{op.kind} starts"] += times
        sums[f"{op.kind} bytes"] += times * (op.read + op.written)
        sums["starts"] += times
        sums["macs"] += times * op.macs
    return sums


def term_seconds(
    counts: OperationCounts, gpu: KnownGpu, batch: int, precision: str, *, backward: bool = True
) -> np.ndarray:
    """Seconds an image of each of TERMS at the peak of a GPU."""
    sums = sums_of(counts.in_precision(precision), backward=backward)
    seconds = dict.fromkeys(TERMS, 0.0)
    for name in ARITHMETIC:
        seconds[name] = 2 * sums[name] / (gpu.peak(precision) * 1e12)
    for name in BYTES:
        seconds[name] = sums[name] / (gpu.bandwidth * 1e9)
    for name in (*STARTS, "starts"):
        seconds[name] = sums[name] * LAUNCH_S / batch
    if backward:
        moved = counts.parameters * 4 * WEIGHT_PASSES
        seconds["parameters"] = moved / (gpu.bandwidth * 1e9) / batch
        seconds["tensors"] = counts.tensors * LAUNCH_S / batch
    return np.array([seconds[name] for name in TERMS])


def roofline_seconds(
    counts: OperationCounts, gpu: KnownGpu, precision: str, *, backward: bool = True
) -> float:
    """Seconds an image if every operation ran at the peak of arithmetic or of bandwidth, whichever
    takes longer: how a model's time changes between GPUs."""
    total = 0.0
    for op, times in counts.in_precision(precision).operations:
        if op.backward and not backward:
            continue
        wide = 1.0 if op.kind == "depthwise" else padded(op.inputs) * padded(op.outputs)
        moved = 0.0 if op.kind in FUSED else op.read + op.written
        arithmetic = 2 * op.macs * wide / (gpu.peak(precision) * 1e12)
        total += times * max(arithmetic, moved / (gpu.bandwidth * 1e9))
    return total


def likeness(counts: OperationCounts, batch: int) -> np.ndarray:
    """Where an architecture lies among others: the sizes of a step (logarithms) and the shares of
    each kind in its bytes and multiply-adds (square roots). Near ones run alike."""
    sums = sums_of(counts.amp)
    moved = sum(sums[name] for name in BYTES)
    macs = sum(sums[name] for name in ARITHMETIC)
    sizes = (sums["macs"], moved, counts.parameters, batch, sums["starts"], counts.image_size)
    shares = [sums[name] / moved for name in BYTES] + [sums[name] / macs for name in ARITHMETIC]
    return np.concatenate([0.5 * np.log(sizes), 2.0 * np.sqrt(shares)])
