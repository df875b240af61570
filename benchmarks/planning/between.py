"""From one GPU to another with one calibration row: factors of GPUs, and their held-out errors.

Training: NVIDIA's rows of one GPU, calibrated by resnet50; EfficientNet-B4 by EfficientNet-B0.
Inference: timm's rows. The figure of the RTX 3090 is carried over by the ratio of the modelled
forward passes and calibrated by resnet50 on the target.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from benchmarks.planning.compute_fit import counted, training
from benchmarks.planning.counts import Row, rows_of
from benchmarks.planning.fitting import coefficients

from stoker.plan.gpu.compute import DAMPING, roofline_ratio
from stoker.plan.gpu.known import gpu_named
from stoker.plan.gpu.operations import OperationCounts
from stoker.plan.gpu.residual import Residuals, residuals
from stoker.plan.gpu.terms import likeness, roofline_seconds, term_seconds

BATCHES = {
    ("resnet50", "A100-80GB"): (256, 256),
    ("resnext101_32x4d", "A100-80GB"): (128, 128),
    ("seresnext101_32x4d", "A100-80GB"): (128, 128),
    ("efficientnet_b0", "A100-80GB"): (256, 256),
    ("efficientnet_b4", "A100-80GB"): (128, 64),
    ("resnet50", "V100-16GB"): (256, 112),
    ("resnext101_32x4d", "V100-16GB"): (128, 64),
    ("seresnext101_32x4d", "V100-16GB"): (112, 64),
    ("efficientnet_b0", "V100-16GB"): (128, 64),
    ("efficientnet_b4", "V100-16GB"): (32, 16),
    ("efficientnet_b0", "V100-32GB"): (256, 128),
    ("efficientnet_b4", "V100-32GB"): (64, 32),
}
"""Images a GPU in 16 and in 32 bits: the tables do not state them, NVIDIA's DeepLearningExamples,
PyTorch/Classification/ConvNets/configs.yml, does."""
CONTRADICTED = {("V100-32GB", "efficientnet_b4")}
"""One GPU's figure contradicts that of eight."""
CALIBRATION = ("resnet50", 224)
INFERENCE_TARGETS = (
    ("RTX4090", "nchw"),
    ("RTX4090", "nhwc"),
    ("RTX5090", "nchw"),
    ("RTXPRO6000-MaxQ", "nchw"),
)


@dataclass(frozen=True)
class Carried:
    """One row forecast from another GPU."""

    gpu: str
    precision: str
    model: str
    error: float
    """Forecast by measured throughput, less 1."""


def batch_of(row: Row) -> int:
    narrow, wide = BATCHES.get((row.model, row.gpu)) or BATCHES[row.model, "V100-16GB"]
    return wide if row.precision in ("fp32", "tf32") else narrow


@cache
def fitted(layout: str) -> tuple[np.ndarray, Residuals]:
    """Coefficients and corrections from all rows of a layout."""
    data = training(layout)
    found = coefficients(data.terms, data.seconds)
    return found, residuals(data.places, np.log(data.seconds / (data.terms @ found)))


def modelled(row: Row) -> float:
    """Seconds an image of a training row, before the GPU's factor."""
    wide = row.precision in ("fp32", "tf32")
    counts = both(row.model, row.px)
    found, corrections = fitted(row.layout or "nhwc")  # not stated for the V100 in fp32
    batch = batch_of(row)
    seconds = float(term_seconds(counts, gpu_named("RTX3090"), batch, "fp16") @ found)
    correction = float(corrections.near(likeness(counts, batch)[None])[0][0])
    ratio = roofline_ratio(counts, gpu_named(row.gpu), row.precision if wide else "fp16")
    return seconds * float(np.exp(correction)) * ratio**DAMPING


def factor_of(row: Row) -> float:
    """How many times longer a published step took than modelled."""
    return 1 / (row.images_per_s * modelled(row))


def both(model: str, px: int) -> OperationCounts:
    """Kept counts of a model in both precisions."""
    narrow, wide = counted(model, px), counted(model, px, "fp32")
    assert narrow is not None and wide is not None, model
    return replace(narrow, fp32=wide.fp32)


def single_rows() -> list[Row]:
    return [
        row
        for row in rows_of()
        if row.kind == "train" and row.gpus == 1 and "/PyTorch/" in row.source
        if (row.gpu, row.model) not in CONTRADICTED
    ]


def carried_training() -> list[Carried]:
    """ResNeXt and SE-ResNeXt by resnet50, EfficientNet-B4 by B0, on the same GPU and precision."""
    rows = single_rows()
    factors = {(row.gpu, row.precision, row.model): factor_of(row) for row in rows}
    carried = []
    for (gpu, precision, model), factor in factors.items():
        by = "efficientnet_b0" if model == "efficientnet_b4" else "resnet50"
        if model != by:
            error = factor / factors[gpu, precision, by] - 1
            name = f"{model} by b0" if by == "efficientnet_b0" else model
            carried.append(Carried(gpu, precision, name, error))
    return carried


def inference_rows(gpu: str, layout: str) -> dict[tuple[str, int], Row]:
    return {
        (row.model, row.px): row
        for row in rows_of()
        if (row.kind, row.gpu, row.layout) == ("infer", gpu, layout)
    }


def carried_inference(gpu: str, layout: str, damping: float = DAMPING) -> list[Carried]:
    """Every model that both GPUs ran, from the RTX 3090's row and resnet50 on the target."""
    ours, theirs = inference_rows("RTX3090", layout), inference_rows(gpu, layout)
    ratios = {}
    for key, row in ours.items():
        counts = counted(*key)
        if counts is not None and key in theirs:
            change = forward_ratio(counts, gpu) ** damping
            ratios[key] = theirs[key].images_per_s / row.images_per_s * change
    return [
        Carried(gpu, layout, key[0], ratios[CALIBRATION] / value - 1)
        for key, value in ratios.items()
        if key != CALIBRATION
    ]


def forward_ratio(counts: OperationCounts, gpu: str) -> float:
    here, there = (
        roofline_seconds(counts, gpu_named(name), "fp16", backward=False)
        for name in (gpu, "RTX3090")
    )
    return here / there


def inference_factor(gpu: str) -> float:
    """The factor of a GPU from resnet50's inference there and on the RTX 3090."""
    ours, theirs = (inference_rows(name, "nchw")[CALIBRATION] for name in ("RTX3090", gpu))
    change = forward_ratio(both(*CALIBRATION), gpu) ** DAMPING
    return ours.images_per_s / theirs.images_per_s / change
