"""What is trained while things go wrong: small runs that between them use every part of a step."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.torch import save_file

from own_models import RANDOM, write
from stoker.recipe.recipe import Recipe
from stoker.train.model.build import build_model

PHASES = """
[[phases]]
from_epoch = 0
image_size = 16
batch_size = 40

[[phases]]
from_epoch = 12
image_size = 24
batch_size = 32
"""


@dataclass(frozen=True)
class Chosen:
    """A stored set, flags, whether image and batch size change in mid-run, and whether the run
    starts from a file of weights."""

    codec: str
    flags: str
    phases: bool = False
    code: str = ""
    """The text of a model of the user's own."""
    weights: bool = False


RECIPES = {
    "jpeg, sgd, ema, accumulation, mixing, clipping": Chosen(
        "jpeg",
        "--image-size 24 --ema --label-smoothing 0.1 --mixup-alpha 0.2 --cutmix-prob 0.3 "
        "--micro-batch 10 --clip-grad 1",
    ),
    "raw, adamw, ema, one-cycle": Chosen(
        "raw",
        "--image-size 16 --optimizer adamw --lr 0.002 --ema --crop pad --scheduler onecycle "
        "--warmup-epochs 1",
    ),
    "raw, sgd, phases": Chosen("raw", "--crop pad --lr 0.02", phases=True),
    "jpeg, adamw, phases, accumulation": Chosen(
        "jpeg", "--optimizer adamw --lr 0.002 --micro-batch 8 --label-smoothing 0.1", phases=True
    ),
    "raw, sgd, ema, a model of one's own": Chosen(
        "raw", "--image-size 16 --crop pad --ema --lr 0.02", code=RANDOM
    ),
}
MORE = {
    "jpeg, sgd, trivial augment, erasing, class weights, drop-path": Chosen(
        "jpeg",
        "--image-size 24 --auto-augment trivial --random-erasing 0.4 --class-weights sqrt "
        "--dropout 0.1 --drop-path 0.2 --mixup-alpha 0.2",
    ),
    "raw, lamb, rand augment, jitter": Chosen(
        "raw",
        "--image-size 16 --optimizer lamb --lr 0.005 --auto-augment rand --color-jitter 0.4 --ema",
    ),
    "raw, weights, frozen body that thaws, ema": Chosen(
        "raw",
        "--image-size 16 --crop pad --lr 0.02 --ema --freeze body --freeze-epochs 9.5 "
        "--head-lr-scale 4",
        weights=True,
    ),
    "raw, weights, frozen stages, layer decay, adamw": Chosen(
        "raw",
        "--image-size 16 --crop pad --optimizer adamw --lr 0.002 --freeze 2 --layer-decay 0.8 "
        "--micro-batch 10",
        weights=True,
    ),
}
"""Augmentation, fine-tuning, and below the optimisers of timm: for the table of kills alone."""
RATES = {
    **dict.fromkeys(("lars", "sgdw", "muon", "rmsprop"), 0.01),
    **dict.fromkeys(("lion", "adan", "adabelief", "adafactorbv", "nadamw"), 0.001),
}
MORE |= {
    f"raw, {name}": Chosen("raw", f"--image-size 16 --optimizer {name} --lr {rate} --ema")
    for name, rate in RATES.items()
}


def start_weights(path: Path) -> Path:
    """A file of weights of the model that is trained here."""
    if not path.exists():
        model, _ = build_model(Recipe(model="resnet9_w4", seed=7), 3)
        save_file(model.state_dict(), path)
    return path


def skip_without_compiler() -> None:
    if shutil.which("g++") is None:
        pytest.skip("torch.compile on a CPU needs g++")


def command(
    sets: dict[str, Path], run: Path, name: str, *, epochs: int = 60, more: str = ""
) -> list[str]:
    """The words that train a recipe; the same every time for the same run."""
    chosen = {**RECIPES, **MORE}[name]
    flags = (
        f"--model resnet9_w4 --batch-size 32 --epochs {epochs} --checkpoint-interval 0.1 "
        f"--eval-every 4 --threads 2 --no-rehearse --spot-notice off {chosen.flags} {more}"
    )
    words = ["train", str(sets[chosen.codec]), "--run", str(run), *flags.split()]
    if chosen.code:
        words += ["--model", f"{write(run.parent, chosen.code)}:build"]
    if chosen.phases:
        recipe = run.parent / "phases.toml"
        recipe.write_text(PHASES)
        words += ["--recipe", str(recipe)]
    if chosen.weights:
        words += ["--weights", str(start_weights(run.parent / "start.safetensors"))]
    return words
