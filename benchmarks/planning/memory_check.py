"""Memory: timm's rows of 24 GB, whose batch is the largest that ran, and published.csv."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache

import numpy as np
from benchmarks.planning.compute_fit import counted, training
from benchmarks.planning.counts import DATA, OLD_NAMES

from stoker.plan.gpu.known import gpu_named
from stoker.plan.gpu.memory import MXNET, PYTORCH, Framework, largest_batch, memory_bytes
from stoker.plan.gpu.operations import OperationCounts, count_operations

STEPS = np.array([512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1])
"""The batches that timm's benchmark tries, from the largest."""


@dataclass(frozen=True)
class Fit:
    """Whether a published row fits by the model, and whether it ran."""

    gpu: str
    gpus: int
    model: str
    batch: int
    precision: str
    ran: bool
    needed: int
    available: int

    @property
    def right(self) -> bool:
        return (self.needed <= self.available) == self.ran


def batch_steps(layout: str) -> np.ndarray:
    """For each row: the logarithm (base 2) of the forecast batch by the one that ran."""
    available = gpu_named("RTX3090").memory_bytes
    steps = []
    for row in training(layout).rows:
        counts = counted(row.model, row.px)
        assert counts is not None
        most = max(largest_batch(counts, available, "fp16"), 1)
        steps.append(np.log2(STEPS[most >= STEPS][0] / row.batch))
    return np.array(steps)


@cache
def counts_of_model(model: str, size: int) -> OperationCounts:
    return count_operations(model, size, 1000)


def published_fits(other: Framework = MXNET) -> list[Fit]:
    """The rows of published.csv that name a GPU, a model and a batch; MXNet's by `other`."""
    fits = []
    with (DATA / "published.csv").open(newline="") as file:
        for line in csv.DictReader(file):
            usable = line["gpu"] != "CPU" and line["global_batch"] and line["px"]
            if not usable or line["outcome"] not in ("ok", "out-of-memory"):
                continue
            size, gpus = int(line["px"].split("-")[-1]), int(line["gpus"])
            model = OLD_NAMES.get(line["model"], line["model"])
            counts = counts_of_model(model, size)
            precision = "fp32" if line["precision"] == "fp32" else "fp16"
            batch = int(line["global_batch"]) // gpus
            framework = other if "mxnet" in line["source"] else PYTORCH
            needed = memory_bytes(counts, batch, precision, gpus=gpus, framework=framework)
            gpu = gpu_named(line["gpu"])
            ran = line["outcome"] == "ok"
            fits.append(Fit(gpu.key, gpus, model, batch, precision, ran, needed, gpu.memory_bytes))
    return fits
