"""The counted operations of the models in the published rows, each counted once and kept as JSON.

    python -m benchmarks.planning.counts SHARE OF

Invariant: a kept count is never changed. A model that this version of timm does not have, or whose
parameters differ by more than TOLERANCE from those of its rows, is not the one that was measured:
its rows are left out of every fit and every error, and `plan_fit.py` names them.
"""

from __future__ import annotations

import csv
import hashlib
import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from stoker.plan.gpu.operations import Operation, OperationCounts, PassCounts, count_pass

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"
KEPT = ROOT / "build" / "plan-counts"
TOLERANCE = 0.02
LAYOUTS = {"nhwc": torch.channels_last, "nchw": torch.contiguous_format}
OLD_NAMES = {"mobilenetv2": "mobilenetv2_100"}


@dataclass(frozen=True)
class Row:
    """A published throughput."""

    source: str
    kind: str
    gpu: str
    gpus: int
    model: str
    px: int
    batch: int
    precision: str
    layout: str
    images_per_s: float
    params_m: float
    gmacs: float


@cache
def rows_of(data: Path = DATA) -> list[Row]:
    """The rows of gpu_throughput.csv; a batch that is not stated is 256 (128 in fp32)."""
    rows = []
    with (data / "gpu_throughput.csv").open(newline="") as file:
        for line in csv.DictReader(file):
            stated = line["batch_per_gpu"]
            wide = line["precision"] in ("fp32", "tf32")
            batch = int(float(stated)) if stated.isdigit() else 128 if wide else 256
            rows.append(
                Row(
                    line["source"],
                    line["kind"],
                    line["gpu"],
                    int(line["gpus"]),
                    line["model"],
                    int(line["px"]),
                    batch,
                    line["precision"],
                    line["layout"],
                    float(line["img_per_s"]),
                    float(line["params_m"] or 0),
                    float(line["gmacs"] or 0),
                )
            )
    return rows


def build(name: str, px: int) -> nn.Module:
    """A model of timm on the meta device, for images of `px` pixels."""
    name = OLD_NAMES.get(name, name)
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        model = timm.create_model(name)
        usual = model.pretrained_cfg.get("input_size", (3, px, px))[-1]
        if usual != px:
            with suppress(TypeError):  # other models take images of any size
                model = timm.create_model(name, img_size=px)
    return model


def path_of(name: str, px: int, precision: str, layout: str) -> Path:
    return KEPT / f"{precision}-{layout}" / f"{name}-{px}.json"


def keep(name: str, px: int, precision: str, layout: str) -> None:
    """Count a model and keep its counts, or the reason why it has none."""
    path = path_of(name, px, precision, layout)
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        model = build(name, px)
        twin = KEPT / "same" / f"{precision}-{layout}-{signature(model, px)}"
        if twin.exists() and (kept_twin := Path(twin.read_text())).exists():
            path.write_text(kept_twin.read_text())
            return
        weights = [weight.numel() for weight in model.parameters()]
        counts = count_pass(model, px, precision == "amp", LAYOUTS[layout])
        kept: dict[str, Any] = {
            "parameters": sum(weights),
            "tensors": len(weights),
            "operations": [[*op, times] for op, times in counts.operations],
            "image_bytes": counts.image_bytes,
            "attention_bytes": counts.attention_bytes,
            "fixed_bytes": counts.fixed_bytes,
        }
    except Exception as error:  # models raise errors of many kinds
        kept = {"error": f"{type(error).__name__}: {error}"[:300]}
    path.write_text(json.dumps(kept))
    if "error" not in kept:
        twin.parent.mkdir(exist_ok=True)
        twin.write_text(str(path))


def signature(model: nn.Module, px: int) -> str:
    """A text that two names of one architecture share."""
    shapes = [tuple(weight.shape) for weight in model.parameters()]
    return hashlib.sha256(f"{model}{shapes}{px}".encode()).hexdigest()[:32]


def counts_kept(name: str, px: int, precision: str, layout: str) -> OperationCounts | None:
    """The kept counts of a model in one precision; None where it could not be counted."""
    path = path_of(name, px, precision, layout)
    if not path.exists():
        return None
    kept = json.loads(path.read_text())
    if "error" in kept:
        return None
    rows = tuple((Operation(*row[:-1]), row[-1]) for row in kept["operations"])
    one = PassCounts(rows, kept["image_bytes"], kept["attention_bytes"], kept["fixed_bytes"])
    return OperationCounts(name, px, kept["parameters"], kept["tensors"], one, one)


def wanted(rows: list[Row]) -> Iterator[tuple[str, int, str, str]]:
    """What the fits need, the most needed first."""
    training = [row for row in rows if row.kind == "train"]
    for row in training:
        if not row.source.startswith("timm"):
            yield row.model, row.px, "amp", "nhwc"
            yield row.model, row.px, "fp32", "nhwc"
    for row in rows:
        if row.kind == "train" or row.gpu == "RTX3090":
            yield row.model, row.px, "amp", "nhwc"


def main() -> None:
    share, of = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    for index, case in enumerate(dict.fromkeys(wanted(rows_of()))):
        if index % of == share:
            keep(*case)


if __name__ == "__main__":
    main()
