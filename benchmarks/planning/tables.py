"""The tables of the package as text: what `plan_fit.py` writes and compares."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
from benchmarks.planning.compute_fit import (
    by_arch,
    by_family,
    coefficient_ranges,
    range_table,
    training,
)
from benchmarks.planning.factors import all_factors, spreads
from benchmarks.planning.several import MOST, ranges
from pyarrow import parquet

from stoker.plan.gpu.terms import TERMS

MADE = (
    "# Made by `python benchmarks/plan_fit.py --write` from ../shared/data: change nothing here.\n"
)
LAYOUTS = ("nhwc", "nchw")


def listed(values: list[float], digits: int) -> str:
    return "[" + ", ".join(f"{value:.{digits}f}" for value in values) + "]"


def compute_toml() -> str:
    rows = sum(len(training(layout).rows) for layout in LAYOUTS)
    lines = [
        MADE + "# Coefficients: how many times longer than at the peak of an RTX 3090 each kind of",
        "# operation takes: [least, middle, most], 5 to 95 % of resampled architectures.",
        "",
        f'source = "{rows:,} training rows of an RTX 3090 (timm, 2022-07-27, torch 1.12, 16 bits)"',
    ]
    for layout in LAYOUTS:
        lines += ["", f"[{layout}]"]
        found = coefficient_ranges(layout)
        lines += [f'"{n}" = {listed(list(row), 4)}' for n, row in zip(TERMS, found, strict=True)]
    table = range_table([sample(layout) for layout in LAYOUTS for sample in (by_arch, by_family)])
    lines += [
        "",
        "# How far throughputs of held-out rows lie below and above, as logarithms: 5 to 95 %, by",
        "# newness (0: measured, 1: nothing near it was measured).",
        "[ranges]",
        *(f"{name} = {listed(values, 4)}" for name, values in table.items()),
    ]
    return "\n".join(lines) + "\n"


def published_toml() -> str:
    lines = [
        MADE + "# Factors: how many times longer than modelled a step takes on each GPU.",
        "# spread: half the width of the 90 % range that each basis adds, as a logarithm.",
        "",
        "[spread]",
        *(f"{name} = {size}" for name, size in sorted(spreads().items())),
    ]
    for (gpu, precision), row in sorted(all_factors().items()):
        lines += [
            "",
            f"[factor.{gpu}.{precision}]",
            f"factor = {row.factor:.4f}",
            f'basis = "{row.basis}"',
            f'source = "{row.source}"',
        ]
    return "\n".join(lines) + "\n"


def scaling_toml() -> str:
    lines = [MADE + "# The share of its own throughput that each of several GPUs keeps.", ""]
    for bits, (low, middle, high, count) in ranges().items():
        lines += [
            f'["{bits}"]',
            f"efficiency = {listed([low, middle, high], 4)}",
            f'source = "{count} rows of 4 to 64 GPUs beside their row of one GPU (NVIDIA '
            'DeepLearningExamples, 2022-2023; MXNet rows of published.csv)"',
            "",
        ]
    lines += [
        "# Above this, several GPUs contradict the row of one GPU.",
        "[most]",
        f"efficiency = {MOST}",
        'source = "of all such rows, exactly the two EfficientNet-B4 rows of the V100-32GB lie '
        'above it"',
    ]
    return "\n".join(lines) + "\n"


def measured_parquet() -> bytes:
    """The place and error of every measured row, for `compute.corrections`."""
    columns: dict[str, list[object]] = {"layout": [], "model": [], "place": [], "error": []}
    for layout in LAYOUTS:
        data = training(layout)
        found = np.round(coefficient_ranges(layout)[:, 1], 4)
        errors = np.log(data.seconds / (data.terms @ found))
        for row, place, error in zip(data.rows, data.places, errors, strict=True):
            columns["layout"].append(layout)
            columns["model"].append(row.model)
            columns["place"].append(np.float16(place).tolist())
            columns["error"].append(round(float(error), 4))
    place = pa.array(columns["place"], pa.list_(pa.float32()))
    table = pa.table(
        {
            "layout": pa.array(columns["layout"]).dictionary_encode(),
            "model": columns["model"],
            "place": place,
            "error": pa.array(columns["error"], pa.float32()),
        }
    )
    file = io.BytesIO()
    parquet.write_table(table, file, compression="zstd", compression_level=19)
    return file.getvalue()


def all_tables() -> dict[str, bytes]:
    """Every table by its file name."""
    return {
        "compute.toml": compute_toml().encode(),
        "published.toml": published_toml().encode(),
        "scaling.toml": scaling_toml().encode(),
        "measured.parquet": measured_parquet(),
    }
