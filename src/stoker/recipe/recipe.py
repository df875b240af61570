"""The recipe: every setting of a run, as one frozen value.

Invariants: a key has the same name in TOML, as a flag and here. Two recipes with the same `text()`
train the same model from the same data. Keys marked `place` say how to run on this machine
(threads, logging, saving). They do not change the result, except that micro_batch sets the groups
that BatchNorm sees. They are left out of the text, so that a run can resume on another machine. A
key at its default is left out too, so that a new key does not rename old runs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass, field, fields
from functools import cache, partial
from operator import ge, gt, le, lt
from typing import Any, get_type_hints

from stoker.errors import BadRequest

VERSION = 1
"""Raised when a default changes, because the same text would then mean another run."""
LIMITS = {"at_least": ge, "at_most": le, "above": gt, "below": lt}


def key(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    place: bool = False,
    fixed: bool = False,
    rare: bool = False,
) -> Any:
    """A recipe field: its default, its help and the values it accepts. A run resumes with another
    value always (`place`), never (`fixed`), or else with --allow-change. A `rare` key has no flag:
    it is set in a recipe file."""
    limits = {"at_least": at_least, "at_most": at_most, "above": above, "below": below}
    kind = {"place": place, "fixed": fixed, "rare": rare}
    return field(default=default, metadata={"help": help, "choices": choices, **kind, **limits})


place = partial(key, place=True)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """From this epoch on, train at this image size and global batch size."""

    from_epoch: int
    image_size: int
    batch_size: int


@dataclass(frozen=True, kw_only=True)
class Recipe:
    model: str = key(
        "resnet9_w16",
        "resnet9[_wN] (built in), any timm model, or your own: ./FILE.py:FUNCTION",
        fixed=True,
    )
    pretrained: bool = key(
        False, "start from timm's pretrained weights (downloads them)", fixed=True
    )
    weights: str = key(
        "", "start from the weights of a file, a run or an export (a path)", fixed=True
    )
    freeze: str = key(
        "", "what is not trained: body (all but the head), the first N stages, or names (a glob)"
    )
    freeze_epochs: float = key(
        0.0, "epochs until everything is trained; 0: --freeze holds for the whole run", at_least=0
    )
    epochs: int = key(20, "number of passes over the training images", at_least=1)
    batch_size: int = key(64, "global batch size: all ranks and micro-batches", at_least=1)
    phases: tuple[Phase, ...] = key((), "image size and batch size by epoch", rare=True)

    optimizer: str = key("sgd", "sgd, adamw (built in) or an optimiser of timm", fixed=True)
    lr: float = key(0.0, "peak learning rate; 0: derive it from --lr-base", at_least=0)
    lr_base: float = key(0.1, "learning rate for a batch of --lr-base-size images", above=0)
    lr_base_size: int = key(256, "batch size that --lr-base is meant for", at_least=1)
    lr_base_scale: str = key(
        "linear",
        "how the learning rate grows with the batch size",
        choices=("linear", "sqrt"),
        rare=True,
    )
    scheduler: str = key(
        "cosine", "learning-rate schedule", choices=("cosine", "onecycle", "step", "constant")
    )
    warmup_epochs: float = key(0.0, "number of epochs of learning-rate warm-up", at_least=0)
    min_lr_ratio: float = key(
        0.0, "last learning rate as a fraction of the peak", at_least=0, at_most=1
    )
    decay_epochs: tuple[float, ...] = key((), "epochs at which --scheduler step decays")
    decay_rate: float = key(0.1, "factor of each decay of --scheduler step", above=0, at_most=1)
    momentum: float = key(
        0.9,
        "momentum of SGD, beta1 of AdamW",
        at_least=0,
        at_most=0.9999,
    )
    weight_decay: float = key(1e-4, "weight decay; biases and norm layers have none", at_least=0)
    head_lr_scale: float = key(
        1.0, "factor of the head's learning rate", above=0, at_most=1000, fixed=True
    )
    layer_decay: float = key(
        1.0,
        "factor of the learning rate from each layer to the one before",
        above=0,
        at_most=1,
        fixed=True,
    )
    clip_grad: float = key(0.0, "largest norm of the gradient; 0: no clipping", at_least=0)

    class_weights: str = key(
        "off",
        "weight of a class in the loss: 1/count, or 1/sqrt(count)",
        choices=("off", "balanced", "sqrt"),
    )
    dropout: float = key(0.0, "dropout before the head of the model", at_least=0, at_most=0.99)
    drop_path: float = key(0.0, "stochastic depth of residual blocks", at_least=0, at_most=0.99)
    label_smoothing: float = key(
        0.0, "fraction of the target spread over all classes", at_least=0, at_most=1
    )
    mixup_alpha: float = key(0.0, "alpha of mixup; 0: no mixup", at_least=0)
    cutmix_alpha: float = key(1.0, "alpha of cutmix", above=0)
    cutmix_prob: float = key(0.0, "fraction of images with cutmix", at_least=0, at_most=1)
    ema: bool = key(False, "keep a moving average (EMA) of the weights and evaluate it", fixed=True)
    ema_decay: float = key(0.999, "decay of the moving average per step", at_least=0, at_most=1)

    image_size: int = key(64, "side of the square model input in pixels", at_least=1)
    crop: str = key(
        "resized",
        "training crop: random area and aspect ratio, random shift, or none",
        choices=("resized", "pad", "centre"),
    )
    crop_scale: float = key(
        0.25, "smallest area of --crop resized, as a fraction", above=0, at_most=1
    )
    crop_pad: int = key(4, "largest shift of --crop pad in pixels", at_least=0)
    crop_pct: float = key(
        0.875, "fraction of the shorter side that evaluation sees", above=0, at_most=1
    )
    hflip: bool = key(True, "flip half of the training images left to right")
    auto_augment: str = key(
        "off", "TrivialAugment or RandAugment of crops", choices=("off", "trivial", "rand")
    )
    rand_ops: int = key(2, "number of operations of RandAugment", at_least=1, at_most=14)
    rand_magnitude: int = key(9, "strength of RandAugment, of 30", at_least=0, at_most=30)
    color_jitter: float = key(
        0.0, "largest change of brightness, contrast and saturation", at_least=0, at_most=1
    )
    random_erasing: float = key(
        0.0, "fraction of images with a box of one random colour", at_least=0, at_most=1
    )

    on_divergence: str = key(
        "skip",
        "after bad numbers and a roll-back: skip the batch, cut the learning rate, or stop",
        choices=("skip", "cut", "stop", "off"),
        rare=True,
    )

    amp: str = key("off", "precision of the forward pass", choices=("off", "tf32", "bf16", "fp16"))
    channels_last: bool = key(True, "use the channels-last memory format")
    compile: bool = key(False, "compile the model with torch.compile")
    deterministic: bool = key(False, "use deterministic kernels where PyTorch has them")
    seed: int = key(0, "seed of weights, order and augmentation", at_least=0, fixed=True)
    model_code: str = key("", "hash of the text of your own model's file", rare=True)

    model_file: str = place("", "where the file of your own model is", rare=True)
    micro_batch: int = place(
        0, "number of images a rank trains on at once; 0: its whole share", at_least=0
    )
    eval_batch_size: int = place(250, "number of images a rank evaluates at once", at_least=1)
    eval_every: int = place(1, "number of epochs between evaluations", at_least=1)
    patience: int = place(
        0, "end after N evaluations without a better result; 0: train all epochs", at_least=0
    )
    target: float = place(
        0.0,
        "end when top-1 reaches this share, such as 0.9; 0: train all epochs",
        at_least=0,
        at_most=1,
    )
    checkpoint_interval: float = place(
        0.0, "seconds between checkpoints; 0: derive them from the cost of a save", at_least=0
    )
    interruption_hours: float = place(
        4.0, "hours that a machine is expected to last", above=0, rare=True
    )
    keep_checkpoints: int = place(2, "number of checkpoints to keep besides the best", at_least=1)
    rehearse: bool = place(True, "before step 1, save and read back in another process")
    time_limit: float = place(
        0.0, "seconds until the run must have saved and ended; 0: no limit", at_least=0
    )
    grace: float = place(30.0, "seconds between a stop signal and the end of the machine", above=0)
    spot_notice: str = place(
        "auto",
        "cloud whose spot notices are watched; auto: the one this machine belongs to",
        choices=("auto", "off", "aws", "gcp", "azure"),
    )
    stall_after: float = place(
        60.0, "seconds without a step that are a stall, at least", above=0, rare=True
    )
    divergence_retries: int = place(
        3, "number of roll-backs before the run fails", at_least=0, rare=True
    )
    on_damage: str = key(
        "stop",
        "when a stored image is damaged: stop, or substitute up to one image in 1000",
        choices=("stop", "substitute"),
        rare=True,
    )
    threads: int = place(0, "number of decoding threads per rank; 0: one per core", at_least=0)
    prefetch: int = place(3, "number of batches loaded ahead", at_least=1, rare=True)
    max_ram: float = place(
        0.0, "GB of memory for data loading on this machine; 0: half of it", at_least=0
    )
    log_interval: float = place(
        30.0, "seconds between lines if the output is not a terminal", above=0
    )

    def __post_init__(self) -> None:
        check_values(self)
        check_together(self)

    def values(self) -> dict[str, Any]:
        """Every key with its value as plain data."""
        return {spec.name: dump_value(getattr(self, spec.name)) for spec in fields(self)}

    def text(self) -> str:
        """Canonical text: the keys that change the result and differ from their defaults."""
        lines = []
        for name, spec in sorted(SPECS.items()):
            value = getattr(self, name)
            if value != spec.default and not spec.metadata["place"]:
                plain = float(value) if TYPES[name] is float else dump_value(value)
                lines.append(f"{name} = {json.dumps(plain)}\n")
        return "".join(lines)

    def digest(self, *context: str) -> str:
        """A short hash of this recipe and its context, such as the fingerprint of the images."""
        whole = "\n".join((f"recipe {VERSION}", self.text(), *context))
        return hashlib.blake2b(whole.encode(), digest_size=5).hexdigest()


@cache
def specs_of(table: Any) -> dict[str, dataclasses.Field[Any]]:
    """The fields, by name, of a dataclass whose fields are written with `key`."""
    return {spec.name: spec for spec in fields(table)}


types_of = cache(get_type_hints)
SPECS, TYPES = specs_of(Recipe), types_of(Recipe)


def dump_value(value: Any) -> Any:
    """A recipe value as plain data for JSON or TOML."""
    if isinstance(value, tuple):
        return [dump_value(item) for item in value]
    return dataclasses.asdict(value) if isinstance(value, Phase) else value


def check_value(name: str, value: Any, table: type = Recipe) -> None:
    """Raise BadRequest where a value is outside the limits of its key."""
    limits = specs_of(table)[name].metadata
    if isinstance(value, float) and not math.isfinite(value):
        raise BadRequest(f"{name} must be a finite number, not {value!r}")
    if limits["choices"] and value not in limits["choices"]:
        raise BadRequest(f"{name} takes one of {', '.join(limits['choices'])}, not {value!r}")
    for word, holds in LIMITS.items():
        limit = limits[word]
        if limit is not None and not holds(value, limit):
            raise BadRequest(f"{name} must be {word.replace('_', ' ')} {limit}, not {value!r}")


def check_values(table: Any) -> None:
    """Refuse a table with a value outside the limits written beside its key."""
    for spec in fields(table):
        check_value(spec.name, getattr(table, spec.name), type(table))


def check_together(recipe: Recipe) -> None:
    """Raise BadRequest where keys contradict each other."""
    starts = [phase.from_epoch for phase in recipe.phases]
    epochs, warmup = recipe.epochs, recipe.warmup_epochs
    if starts and (starts[0] != 0 or starts != sorted(set(starts))):
        raise BadRequest(f"phases must start at epoch 0 and be in ascending order, not {starts}")
    if any(start >= epochs for start in starts):
        raise BadRequest(f"the last phase starts at epoch {starts[-1]}, but epochs = {epochs}")
    if any(phase.image_size < 1 or phase.batch_size < 1 for phase in recipe.phases):
        raise BadRequest("image_size and batch_size of phases must be at least 1")
    if warmup >= epochs:
        raise BadRequest(f"warmup_epochs = {warmup} must be less than epochs = {epochs}")
    if recipe.weights and recipe.pretrained:
        raise BadRequest(
            "weights and pretrained exclude each other: drop one (--no-pretrained, if a recipe "
            "sets it)"
        )
    if any(epoch < 0 for epoch in recipe.decay_epochs):
        raise BadRequest(f"decay_epochs must be at least 0, not {list(recipe.decay_epochs)}")
    if recipe.scheduler == "step" and not recipe.decay_epochs:
        raise BadRequest("scheduler = step needs decay_epochs, for example [30, 60, 80]")
