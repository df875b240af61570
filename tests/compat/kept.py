"""What `make.py` and the tests share: the kept data, the commands that train on it, the hashes.

Invariant: a process started with PINNED computes the same bits on every x86-64 CPU: each library
is held to instructions that all of them have.
"""

from __future__ import annotations

import hashlib
import platform
import struct
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from chaos.trainers import last_checkpoint
from stoker.run.directory import Run
from stoker.survive.checkpoint import read_checkpoint

HERE = Path(__file__).parent
FORMAT_1, FORMAT_2 = HERE / "data" / "1", HERE / "data" / "2"
EXPECTED = FORMAT_1 / "expected.json"
PINS = HERE / "pins.json"
CODECS = ("jpeg", "raw")
RANKS = (1, 2)

PINNED = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OMP_NUM_THREADS": "1",
    "OPENCV_CPU_DISABLE": "SSE4.1,SSE4.2,AVX,FP16,AVX2,FMA3,AVX512-SKX",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX512F",
    "CUDA_VISIBLE_DEVICES": "",
}
"""The environment of every process whose bits are compared."""

COMMON = (
    "--model resnet9_w2 --batch-size 16 --keep-checkpoints 1 --checkpoint-interval 0.05 "
    "--eval-every 6 --threads 1 --no-rehearse --spot-notice off"
)
RECIPES = {
    "sgd": "--image-size 12 --ema --label-smoothing 0.1 --mixup-alpha 0.2 --cutmix-prob 0.3 "
    "--micro-batch 4 --clip-grad 1 --lr 0.05",
    "adamw": "--image-size 16 --optimizer adamw --lr 0.002 --ema --crop pad --scheduler onecycle "
    "--warmup-epochs 1",
    "phases": f"--recipe {HERE / 'phases.toml'} --lr 0.02",
}
"""Between them: both optimizers, moving average, mixing, accumulation, clipping, both crops, two
schedules, and a change of image and batch size in mid-run."""
RECIPE_OF = {"jpeg": "sgd", "raw": "adamw"}
"""The recipe of the kept runs of each codec."""
EPOCHS = 18
"""Of the kept runs: 54 steps of 16 images."""


@dataclass(frozen=True)
class Kept:
    """A run directory that an earlier version wrote."""

    codec: str
    ranks: int
    finished: bool = False

    @property
    def name(self) -> str:
        if self.finished:
            return f"finished-{self.codec}"
        return f"interrupted-{self.codec}-{self.ranks}"

    @property
    def path(self) -> Path:
        return FORMAT_1 / self.name

    def argv(self, run: Path) -> list[str]:
        return command(FORMAT_1 / f"packed-{self.codec}", run, RECIPE_OF[self.codec], EPOCHS)


INTERRUPTED = [Kept(codec, ranks) for codec in CODECS for ranks in RANKS]
FINISHED = Kept("jpeg", 1, finished=True)


def command(data: Path, run: Path, recipe: str, epochs: int) -> list[str]:
    """The words that train a recipe of RECIPES on a packed set."""
    words = ["train", str(data), "--run", str(run), "--epochs", str(epochs)]
    return [*words, *COMMON.split(), *RECIPES[recipe].split()]


def versions() -> dict[str, str]:
    """What the bits of a model depend on beside our own code."""
    return {"machine": platform.machine(), "torch": version("torch")}


def difference(expected: dict[str, str]) -> str:
    """Why bits recorded elsewhere cannot be compared here; empty where they can."""
    return ", ".join(
        f"{name} is {actual}, the bits were recorded with {expected[name]}"
        for name, actual in versions().items()
        if expected[name] != actual
    )


def digest(tree: Any) -> str:
    """SHA-256 of everything in dictionaries and lists: types, shapes, and each tensor's bytes."""
    total = hashlib.sha256()

    def add(item: Any) -> None:
        if isinstance(item, torch.Tensor):
            total.update(f"tensor {item.dtype} {tuple(item.shape)} ".encode())
            total.update(item.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        elif isinstance(item, dict):
            total.update(f"dict {len(item)} ".encode())
            for name in sorted(item, key=repr):
                add(name)
                add(item[name])
        elif isinstance(item, list | tuple):
            total.update(f"list {len(item)} ".encode())
            for part in item:
                add(part)
        elif isinstance(item, float):
            total.update(b"float " + struct.pack("<d", item))
        else:
            total.update(f"{type(item).__name__} {item!r} ".encode())

    add(tree)
    return total.hexdigest()


def bits_of(run: Run) -> dict[str, str]:
    """Hashes of what a run computed: its newest checkpoint, every step and every evaluation."""
    snapshot = read_checkpoint(last_checkpoint(run))
    steps = [[e["step"], e["position"], e["lr"], e["norm"], e["sums"]] for e in run.steps()]
    evaluations = [
        [e["position"], e["top1"], e["top5"], e["loss"]] for e in run.merged("evaluation")
    ]
    return {
        "weights": digest(snapshot.weights),
        "ema": digest(snapshot.ema),
        "state": digest(snapshot.state),
        "steps": digest(steps),
        "evaluations": digest(evaluations),
    }
