"""How much each of several GPUs keeps of one GPU's throughput: a constant for each precision."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from benchmarks.planning.counts import DATA, rows_of

MOST = 1.05
"""Above this share several GPUs contradict the row of one GPU."""
WIDE = ("fp32", "tf32")


@dataclass(frozen=True)
class Several:
    """Throughputs of one and of several GPUs of one kind."""

    source: str
    gpu: str
    gpus: int
    model: str
    precision: str
    one: float
    all_of_them: float

    @property
    def efficiency(self) -> float:
        return self.all_of_them / (self.gpus * self.one)

    @property
    def bits(self) -> str:
        return "32 bits" if self.precision in WIDE else "16 bits"


def pairs() -> list[Several]:
    """All rows of several GPUs that have a row of one GPU beside them."""
    rows = [*throughputs(), *mxnet()]
    single = {row[:-2]: row[-1] for row in rows if row[-2] == 1}
    return [
        Several(*key[:2], gpus, *key[2:4], single[key], rate)
        for *parts, gpus, rate in rows
        if gpus > 1 and (key := tuple(parts)) in single
    ]


def throughputs() -> Iterator[tuple[str, str, str, str, int, int, float]]:
    for row in rows_of():
        if not row.source.startswith("timm"):
            yield (row.source, row.gpu, row.model, row.precision, 0, row.gpus, row.images_per_s)


def mxnet() -> Iterator[tuple[str, str, str, str, int, int, float]]:
    """The rows of published.csv; for each machine and batch a GPU the first one counts."""
    rows = {}
    with (DATA / "published.csv").open(newline="") as file:
        for line in csv.DictReader(file):
            if (
                line["source"] != "caltech256-mxnet"
                or line["gpu"] == "CPU"
                or not line["img_per_s"]
            ):
                continue
            gpus = int(line["gpus"])
            batch = int(line["global_batch"]) // gpus
            key = (line["source"], line["gpu"], line["model"], line["precision"], batch, gpus)
            rows.setdefault(key, float(line["img_per_s"]))
    for key, rate in rows.items():
        yield (*key, rate)


def consistent() -> list[Several]:
    return [pair for pair in pairs() if pair.efficiency <= MOST]


def leave_model_out() -> np.ndarray:
    """Relative errors of the throughput by the median efficiency of the other models."""
    rows, errors = consistent(), []
    for row in rows:
        others = [r.efficiency for r in rows if r.bits == row.bits and r.model != row.model]
        errors.append(float(np.median(others)) / row.efficiency - 1)
    return np.array(errors)


def ranges() -> dict[str, tuple[float, float, float, int]]:
    """Lowest, middle and highest efficiency in each precision, and the number of rows."""
    table = {}
    for bits in ("16 bits", "32 bits"):
        values = np.array([row.efficiency for row in consistent() if row.bits == bits])
        low, middle, high = np.quantile(values, (0.05, 0.5, 0.95))
        table[bits] = (float(low), float(middle), float(min(high, 1.0)), len(values))
    return table
