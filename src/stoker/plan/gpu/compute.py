"""Throughput of a training on one GPU: a sum of terms, corrected by what was measured near it.

Invariants: seconds an image on the reference GPU in 16 bits are the coefficients times the terms at
its peak, times the correction of measured architectures. On another GPU or in another precision
they are multiplied by a factor from one calibration row, and by a power of how the model's roofline
changes. Every coefficient and factor is in a table with its source (`benchmarks/plan_fit.py`).
The range is that of held-out rows: narrow near measured architectures, wide for a family that was
never measured, wider on a GPU that was never measured.
"""

from __future__ import annotations

import io
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import exp, hypot
from typing import Any

import numpy as np
from pyarrow import parquet

from stoker.plan.gpu.known import KnownGpu, UnknownGpu, gpu_named
from stoker.plan.gpu.operations import OperationCounts
from stoker.plan.gpu.residual import Residuals, residuals
from stoker.plan.gpu.terms import TERMS, likeness, roofline_seconds, term_seconds

REFERENCE = "RTX3090"
"""The GPU on which the coefficients were fitted and the corrections measured, in 16 bits."""
DAMPING = 0.5
"""The power of the ratio of two rooflines: real GPUs differ less between models than peaks do."""
LAYOUTS = {True: "nhwc", False: "nchw"}


@dataclass(frozen=True, kw_only=True)
class ComputeForecast:
    """Images a second that the model's passes and the optimiser's step alone allow."""

    images_per_s: float
    low: float
    """90 % of held-out rows lie between `low` and `high`."""
    high: float
    source: str
    """What the forecast stands on, in words."""


@dataclass(frozen=True, kw_only=True)
class MeasuredRow:
    """A throughput that was measured on a GPU: it replaces the table's calibration."""

    counts: OperationCounts
    batch: int
    images_per_s: float
    channels_last: bool = True


@dataclass(frozen=True)
class GpuFactor:
    """How many times longer than modelled a step takes on a GPU, and how sure that is."""

    factor: float
    spread: float
    """Half the width of the 90 % range, as a logarithm."""
    source: str


def forecast_compute(
    counts: OperationCounts,
    gpu: KnownGpu | str,
    batch: int,
    precision: str,
    channels_last: bool,
    *,
    measured: MeasuredRow | None = None,
) -> ComputeForecast:
    """Images a second of one GPU. `precision`: fp32, tf32, fp16 or bf16. `measured`: a row of this
    GPU in this precision. Raises UnknownGpu where there is no basis for a forecast."""
    gpu = gpu_named(gpu) if isinstance(gpu, str) else gpu
    modelled, newness = modelled_seconds(counts, gpu, batch, precision, channels_last)
    if measured is None:
        basis = gpu_factor(gpu, precision)
    else:
        basis = measured_factor(measured, gpu, precision)
    seconds = basis.factor * modelled
    slower, faster = (hypot(edge, basis.spread) for edge in edges_at(newness))
    return ComputeForecast(
        images_per_s=1 / seconds,
        low=1 / seconds * exp(-slower),
        high=1 / seconds * exp(faster),
        source=f"{tables()['source']}; {basis.source}",
    )


def modelled_seconds(
    counts: OperationCounts, gpu: KnownGpu, batch: int, precision: str, channels_last: bool
) -> tuple[float, float]:
    """Seconds an image before the GPU's factor, and how new the architecture is (0 to 1)."""
    layout = LAYOUTS[channels_last]
    reference = gpu_named(REFERENCE)
    terms = term_seconds(counts, reference, batch, "fp16")
    correction, newness = corrections(layout).near(likeness(counts, batch)[None])
    seconds = float(terms @ coefficients(layout)) * exp(correction[0])
    return seconds * roofline_ratio(counts, gpu, precision) ** DAMPING, float(newness[0])


def roofline_ratio(counts: OperationCounts, gpu: KnownGpu, precision: str) -> float:
    """How many times longer the model's roofline is than on the reference GPU in 16 bits."""
    reference = roofline_seconds(counts, gpu_named(REFERENCE), "fp16")
    return roofline_seconds(counts, gpu, precision) / reference


def measured_factor(row: MeasuredRow, gpu: KnownGpu, precision: str) -> GpuFactor:
    """The factor of a GPU that one measured row gives."""
    modelled, _ = modelled_seconds(row.counts, gpu, row.batch, precision, row.channels_last)
    return GpuFactor(
        1 / (row.images_per_s * modelled),
        0.0 if is_reference(gpu, precision) else float(tables()["spread"]["training"]),
        f"calibrated by {row.counts.model} at {row.images_per_s:,.0f} images/s on this GPU",
    )


def is_reference(gpu: KnownGpu, precision: str) -> bool:
    return gpu.key == REFERENCE and precision not in ("fp32", "tf32")


def gpu_factor(gpu: KnownGpu, precision: str) -> GpuFactor:
    """The factor of the table. Raises UnknownGpu for a GPU that has none."""
    if is_reference(gpu, precision):
        return GpuFactor(1.0, 0.0, "measured on this GPU")
    kind = precision if precision in ("fp32", "tf32") else "fp16"
    if kind == "tf32" and not gpu.tf32:
        kind = "fp32"
    row = tables()["factor"].get(gpu.key, {}).get(kind)
    if row is None:
        raise UnknownGpu(
            f"there is no basis for a forecast on a {gpu.key}: no published row is near its "
            "generation; measure on it with stoker bench train and pass its result file"
        )
    return GpuFactor(row["factor"], float(tables()["spread"][row["basis"]]), row["source"])


def edges_at(newness: float) -> tuple[float, float]:
    """How far below and above a forecast held-out rows of such newness lie, as logarithms."""
    ranges = tables()["ranges"]
    below, above = (
        float(np.interp(newness, ranges["newness"], ranges[side])) for side in ("below", "above")
    )
    return below, above


@cache
def tables() -> dict[str, Any]:
    """compute.toml and published.toml as one table."""
    folder = files("stoker.plan.gpu").joinpath("tables")
    return {
        **tomllib.loads(folder.joinpath("compute.toml").read_text()),
        **tomllib.loads(folder.joinpath("published.toml").read_text()),
    }


@cache
def coefficients(layout: str) -> np.ndarray:
    """The middle of each coefficient, in the order of TERMS."""
    return np.array([tables()[layout][name][1] for name in TERMS])


@cache
def corrections(layout: str) -> Residuals:
    """What the measured rows of a layout say about others."""
    data = files("stoker.plan.gpu").joinpath("tables", "measured.parquet").read_bytes()
    table = parquet.read_table(io.BytesIO(data))
    rows = table.filter(table["layout"].to_numpy(zero_copy_only=False) == layout)
    places = np.array(rows["place"].to_pylist(), dtype=np.float64)
    return residuals(places, rows["error"].to_numpy().astype(np.float64))
