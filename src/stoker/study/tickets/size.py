"""What a ticket saves: bytes of its file, plain and compressed, and seconds of a forward pass.

Invariant: dense model and ticket are timed in turns, in one process, so that what else the machine
does slows both.
"""

from __future__ import annotations

import time
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from stoker.run.directory import Run
from stoker.survive.manifest import checkpoint_folder, evaluated_file, read_manifest
from stoker.use.classifier import Classifier, from_run

BATCH, SECONDS, LEAST_TURNS, MOST_TURNS = 32, 3.0, 5, 50
NOTICEABLE = 1.05
"""A ticket that is less than this factor faster is no faster."""


@dataclass(frozen=True)
class ModelCost:
    """Bytes of a file of weights, as it is and compressed, and images a second."""

    bytes: int
    compressed: int
    images_s: float


@dataclass(frozen=True)
class TicketSize:
    """A ticket beside the dense model that it is a part of."""

    run: str
    keep: float
    rewind: float
    zeros: int
    numbers: int
    """Numbers in the file: kernels, biases, norms and running statistics."""
    dense: ModelCost
    ticket: ModelCost
    speedup: float
    device: str

    @property
    def is_faster(self) -> bool:
        return self.speedup >= NOTICEABLE

    def as_data(self) -> dict[str, Any]:
        return {**asdict(self), "is_faster": self.is_faster}


def measure_size(dense: Path, ticket: Path, keep: float, rewind: float) -> TicketSize:
    """Compare the last checkpoints of two runs of one model. Raises StokerError where one is
    damaged."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    models = [from_run(Run(path), device, "last") for path in (dense, ticket)]
    *seconds, speedup = time_in_turns(*models)
    costs = []
    for path, batch_s in zip((dense, ticket), seconds, strict=True):
        data = weights_file(path).read_bytes()
        costs.append(ModelCost(len(data), len(zlib.compress(data, 9)), BATCH / batch_s))
    numbers = [t for t in models[1].model.state_dict().values() if t.is_floating_point()]
    return TicketSize(
        str(ticket),
        keep,
        rewind,
        sum(int((tensor == 0).sum()) for tensor in numbers),
        sum(tensor.numel() for tensor in numbers),
        costs[0],
        costs[1],
        speedup,
        device.type,
    )


def weights_file(run: Path) -> Path:
    """The file with the weights that evaluation uses."""
    folder = checkpoint_folder(run, "last")
    return folder / evaluated_file(read_manifest(folder))


def time_in_turns(dense: Classifier, ticket: Classifier) -> tuple[float, float, float]:
    """Median seconds of a batch for each model, and the median factor by which the second one is
    faster in the same turn."""
    side = dense.preprocessing.image_size
    draw = torch.Generator().manual_seed(0)
    shape = (BATCH, side, side, 3)
    images = torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8).to(dense.device)
    for model in (dense, ticket, dense, ticket):
        time_once(model, images)
    turns: list[tuple[float, float]] = []
    deadline = time.perf_counter() + SECONDS
    while len(turns) < LEAST_TURNS or (len(turns) < MOST_TURNS and time.perf_counter() < deadline):
        turns.append((time_once(dense, images), time_once(ticket, images)))
    firsts, seconds = zip(*turns, strict=True)
    return median(firsts), median(seconds), median(a / b for a, b in turns)


def time_once(model: Classifier, images: Tensor) -> float:
    """Seconds of one batch."""
    began = time.perf_counter()
    model.logits(images)
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began
