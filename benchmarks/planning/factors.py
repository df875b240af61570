"""The factor of each GPU and precision, what it stands on, and how far off it may be."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import permutations

import numpy as np
from benchmarks.planning.between import (
    CALIBRATION,
    INFERENCE_TARGETS,
    both,
    carried_inference,
    carried_training,
    factor_of,
    inference_factor,
    inference_rows,
)
from benchmarks.planning.counts import Row, rows_of

from stoker.plan.gpu.compute import DAMPING, REFERENCE, roofline_ratio
from stoker.plan.gpu.known import gpu_named, gpus

MLPERF = {"A100-80GB": 28600, "H100": 57300, "H200": 63862, "L40S": 14900}
"""Images a second of ResNet-50 on 8 GPUs: published.csv, MLPerf 3.0 and 4.0."""
BASES = {"Ampere": "RTX3090", "Ada": "RTX4090", "Blackwell": "RTXPRO6000-MaxQ"}
BASES |= {"Turing": "V100-16GB", "Hopper": "H100"}
"""The GPU from whose factor those of a generation are scaled by their specifications."""
LARGE = {"B200": "H100", "B300": "H100"}
"""Chips with stacked memory are scaled from one that has it too."""
COVERED = 0.9


@dataclass(frozen=True)
class Factor:
    """A row of the table."""

    factor: float
    basis: str
    source: str


def roof(gpu: str, precision: str = "fp16") -> float:
    return roofline_ratio(both(*CALIBRATION), gpu_named(gpu), precision)


def scaled(factor: float, gpu: str, precision: str, other: str, others: str) -> float:
    """A factor carried to another GPU or precision in full proportion of resnet50's roofline."""
    return factor * (roof(gpu, precision) / roof(other, others)) ** (1 - DAMPING)


def training_rows() -> dict[tuple[str, str], Row]:
    """The calibration rows of training: resnet50 on one GPU."""
    rows: dict[tuple[str, str], Row] = {}
    for row in rows_of():
        single = row.kind == "train" and row.gpus == 1 and row.gpu != REFERENCE
        if single and row.model == CALIBRATION[0]:
            precision = row.precision if row.precision in ("fp32", "tf32") else "fp16"
            if "/PyTorch/" in row.source or row.gpu == "A100-40GB":
                rows.setdefault((row.gpu, precision), row)
    return rows


@cache
def calibrated() -> dict[tuple[str, str], Factor]:
    """Factors that a row on the GPU itself gives."""
    table = {(REFERENCE, "fp16"): Factor(1.0, "training", "measured on this GPU")}
    for key, row in training_rows().items():
        by = "TensorFlow" if "TensorFlow" in row.source else "PyTorch"
        source = f"resnet50 trained here, {row.images_per_s:,.0f} images/s (NVIDIA, {by}, 2022)"
        table[key] = Factor(factor_of(row), "training", source)
    for gpu in dict.fromkeys(gpu for gpu, _ in INFERENCE_TARGETS):
        rate = inference_rows(gpu, "nchw")[CALIBRATION].images_per_s
        source = f"resnet50's inference here, {rate:,.0f} images/s (timm), against an RTX 3090's"
        table[gpu, "fp16"] = Factor(inference_factor(gpu), "inference", source)
    for gpu, rate in MLPERF.items():
        if (gpu, "fp16") not in table:
            faster = rate / MLPERF["A100-80GB"]
            level = table["A100-80GB", "fp16"].factor / faster
            factor = level / (roof(gpu) / roof("A100-80GB")) ** DAMPING
            source = f"ResNet-50 on 8 of them, {faster:.2f} times 8 A100 (MLPerf, 2023-2024)"
            table[gpu, "fp16"] = Factor(factor, "published", source)
    return table


@cache
def all_factors() -> dict[tuple[str, str], Factor]:
    """The factor of every GPU whose generation has a row, in every precision that it has."""
    table = dict(calibrated())
    for gpu in gpus().values():
        base = LARGE.get(gpu.key) or BASES.get(gpu.generation)
        if base and (gpu.key, "fp16") not in table:
            factor = scaled(table[base, "fp16"].factor, gpu.key, "fp16", base, "fp16")
            source = f"by specification from the {base}: no row of this GPU is published"
            table[gpu.key, "fp16"] = Factor(factor, "specification", source)
    for gpu in gpus().values():
        for precision, like in (("fp32", "V100-16GB"), ("tf32", "A100-80GB")):
            if (gpu.key, "fp16") not in table or (gpu.key, precision) in table:
                continue
            if precision == "tf32" and not gpu.tf32:
                continue
            slower = table[like, precision].factor / table[like, "fp16"].factor
            slower /= scaled(1.0, like, precision, like, "fp16")
            factor = table[gpu.key, "fp16"].factor * slower
            factor = scaled(factor, gpu.key, precision, gpu.key, "fp16")
            source = f"{precision} by specification, as on the {like}; "
            source += table[gpu.key, "fp16"].source
            table[gpu.key, precision] = Factor(factor, "specification", source)
    return table


def specification_errors() -> np.ndarray:
    """Logarithms of how far off each calibrated GPU is, scaled from each other by specification."""
    table = {gpu: row.factor for (gpu, kind), row in calibrated().items() if kind == "fp16"}
    return np.array(
        [
            np.log(table[gpu] / scaled(table[other], gpu, "fp16", other, "fp16"))
            for gpu, other in permutations(table, 2)
            if gpu.split("-")[0] != other.split("-")[0]
        ]
    )


def spreads() -> dict[str, float]:
    """Half the width of the 90 % range that each basis adds, as a logarithm."""
    training = np.log1p([row.error for row in carried_training()])
    inference = np.log1p(
        [row.error for pair in INFERENCE_TARGETS for row in carried_inference(*pair)]
    )
    sizes = {
        "training": np.quantile(np.abs(training), COVERED),
        "inference": np.quantile(np.abs(inference), COVERED),
        "specification": np.quantile(np.abs(specification_errors()), COVERED),
    }
    # An inference row, and a row of other software, say nothing certain of training here.
    sizes["inference"] = np.hypot(sizes["inference"], sizes["training"])
    sizes["published"] = max(sizes["specification"], sizes["inference"])
    return {name: round(float(size), 4) for name, size in sizes.items()}
