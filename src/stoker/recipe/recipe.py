"""The recipe: every choice that shapes a run, as one frozen value.

Invariants: a key is one word, the same in TOML, as a flag and here. Two recipes with the same
`text()` train the same model from the same data. Keys marked `place` say how to run on this
machine (threads, logging, saving); they do not change the result (micro_batch: but for the groups
that BatchNorm sees) and are left out of the text, so that the same run can go on elsewhere. A key
at its default is left out too: a key added later leaves old names alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, get_type_hints

from stoker.errors import BadRequest

VERSION = 1
"""Raised when a default changes: the same text would mean another run."""


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
    """A recipe field: its default, its help, the values it takes, and whether a run that has begun
    can go on with another (`place`: always; `fixed`: never; else when told to). A `rare` one is no
    flag: it is only written in a recipe file."""
    limits = {"at_least": at_least, "at_most": at_most, "above": above, "below": below}
    kind = {"place": place, "fixed": fixed, "rare": rare}
    return field(default=default, metadata={"help": help, "choices": choices, **kind, **limits})


@dataclass(frozen=True, kw_only=True)
class Phase:
    """From this epoch on, train at this image size and global batch size."""

    from_epoch: int
    image_size: int
    batch_size: int


@dataclass(frozen=True, kw_only=True)
class Recipe:
    model: str = key(
        "resnet9_w16", "network: resnet9[_wN] of our own, or any timm name", fixed=True
    )
    pretrained: bool = key(
        False, "start from timm's pre-trained weights (downloads them)", fixed=True
    )
    epochs: int = key(20, "passes over the training images", at_least=1)
    batch_size: int = key(64, "global batch size, over all ranks and micro-batches", at_least=1)
    phases: tuple[Phase, ...] = key((), "image and batch size by epoch", rare=True)

    optimizer: str = key("sgd", "how weights move", choices=("sgd", "adamw"), fixed=True)
    lr: float = key(0.0, "peak learning rate as it is; 0 derives it from --lr-base", at_least=0)
    lr_base: float = key(0.1, "learning rate for a batch of --lr-base-size", above=0)
    lr_base_size: int = key(256, "batch size that --lr-base is meant for", at_least=1)
    lr_base_scale: str = key(
        "linear",
        "how the learning rate follows the batch size",
        choices=("linear", "sqrt"),
        rare=True,
    )
    scheduler: str = key(
        "cosine",
        "learning rate over the run",
        choices=("cosine", "onecycle", "step", "constant"),
    )
    warmup_epochs: float = key(0.0, "epochs of linear warm-up", at_least=0)
    min_lr_ratio: float = key(
        0.0, "last learning rate as a share of the peak", at_least=0, at_most=1
    )
    decay_epochs: tuple[float, ...] = key((), "epochs at which scheduler=step decays")
    decay_rate: float = key(0.1, "factor of each decay of scheduler=step", above=0, at_most=1)
    momentum: float = key(0.9, "momentum of SGD, beta1 of AdamW", at_least=0, at_most=0.9999)
    weight_decay: float = key(1e-4, "decay of kernels (never of biases and norms)", at_least=0)
    clip_grad: float = key(0.0, "clip the gradient's norm to this; 0 does not", at_least=0)

    label_smoothing: float = key(
        0.0, "share of the target spread over all classes", at_least=0, at_most=1
    )
    mixup_alpha: float = key(0.0, "mixup strength; 0 turns it off", at_least=0)
    cutmix_alpha: float = key(1.0, "cutmix box distribution", above=0)
    cutmix_prob: float = key(0.0, "share of the images that get cutmix", at_least=0, at_most=1)
    ema: bool = key(
        False, "keep and evaluate an exponential moving average of the weights", fixed=True
    )
    ema_decay: float = key(0.999, "how slowly the average moves, per step", at_least=0, at_most=1)

    image_size: int = key(64, "side of the square that the network sees, in pixels", at_least=1)
    crop: str = key(
        "resized",
        "training crop: random area and aspect, shifted a little, or none",
        choices=("resized", "pad", "centre"),
    )
    crop_scale: float = key(0.25, "smallest area of crop=resized, as a share", above=0, at_most=1)
    crop_pad: int = key(4, "largest shift of crop=pad, in pixels", at_least=0)
    crop_pct: float = key(
        0.875, "share of the shorter side that evaluation looks at", above=0, at_most=1
    )
    hflip: bool = key(True, "flip half of the training images left to right")

    on_divergence: str = key(
        "skip",
        "after bad numbers and a roll-back: skip the batch, cut the learning rate, or stop",
        choices=("skip", "cut", "stop", "off"),
        rare=True,
    )

    amp: str = key("off", "arithmetic of the forward pass", choices=("off", "tf32", "bf16", "fp16"))
    channels_last: bool = key(True, "store images and kernels channels-last")
    compile: bool = key(False, "compile the network with torch.compile")
    deterministic: bool = key(False, "deterministic kernels wherever PyTorch has them")
    seed: int = key(0, "seed of weights, order and augmentation", at_least=0, fixed=True)

    micro_batch: int = key(
        0, "images a rank holds at once; 0 takes its whole share", at_least=0, place=True
    )
    eval_batch_size: int = key(250, "images a rank evaluates at once", at_least=1, place=True)
    eval_every: int = key(1, "epochs between evaluations", at_least=1, place=True)
    checkpoint_interval: float = key(
        0.0,
        "seconds of work at risk between checkpoints; 0 derives them from what a save costs",
        at_least=0,
        place=True,
    )
    interruption_hours: float = key(
        4.0, "how long a machine lasts, as far as you know", above=0, place=True, rare=True
    )
    keep_checkpoints: int = key(2, "checkpoints kept beside the best", at_least=1, place=True)
    rehearse: bool = key(True, "before step 1, save and read back in a fresh process", place=True)
    time_limit: float = key(
        0.0, "be gone, all saved, so many seconds after the start; 0 never", at_least=0, place=True
    )
    grace: float = key(
        30.0, "seconds between a stop signal and the end of the machine", above=0, place=True
    )
    spot_notice: str = key(
        "auto",
        "whose notices to watch for; auto asks the machine's own name plate",
        choices=("auto", "off", "aws", "gcp", "azure"),
        place=True,
    )
    stall_after: float = key(
        60.0,
        "seconds without a step that count as a stall, at least",
        above=0,
        place=True,
        rare=True,
    )
    divergence_retries: int = key(
        3, "how often to roll back before giving up", at_least=0, place=True, rare=True
    )
    on_damage: str = key(
        "stop",
        "when a stored image no longer decodes; substitute takes another one, up to one in 1000",
        choices=("stop", "substitute"),
        rare=True,
    )
    threads: int = key(0, "decoding threads a rank; 0 takes the cores", at_least=0, place=True)
    prefetch: int = key(3, "batches made ahead", at_least=1, place=True, rare=True)
    max_ram: float = key(
        0.0,
        "GB that loading may take on this machine; 0: half of what there is",
        at_least=0,
        place=True,
    )
    log_interval: float = key(30.0, "seconds between lines in a pipe", above=0, place=True)

    def __post_init__(self) -> None:
        check_values(self)
        check_together(self)

    def values(self) -> dict[str, Any]:
        """Every key with its value as plain data."""
        return {spec.name: dump_value(getattr(self, spec.name)) for spec in fields(self)}

    def text(self) -> str:
        """Canonical text: the keys that shape the result and differ from their defaults."""
        changed = {
            spec.name: dump_value(
                float(getattr(self, spec.name))
                if TYPES[spec.name] is float
                else getattr(self, spec.name)
            )
            for spec in fields(self)
            if not spec.metadata["place"] and getattr(self, spec.name) != spec.default
        }
        return "".join(f"{name} = {json.dumps(changed[name])}\n" for name in sorted(changed))

    def digest(self, *context: str) -> str:
        """Short name of this recipe in a context (the dataset's fingerprint, say)."""
        whole = "\n".join((f"recipe {VERSION}", self.text(), *context))
        return hashlib.blake2b(whole.encode(), digest_size=5).hexdigest()


@cache
def specs_of(table: Any) -> dict[str, dataclasses.Field[Any]]:
    """The fields, by name, of a dataclass whose fields are written with `key`."""
    return {spec.name: spec for spec in fields(table)}


types_of = cache(get_type_hints)
SPECS, TYPES = specs_of(Recipe), types_of(Recipe)


def dump_value(value: Any) -> Any:
    """A recipe value as plain data, ready for JSON or TOML."""
    if isinstance(value, tuple):
        return [dump_value(item) for item in value]
    return dataclasses.asdict(value) if isinstance(value, Phase) else value


def check_value(name: str, value: Any, table: type = Recipe) -> None:
    """Refuse a value outside the limits written beside its key."""
    limits = specs_of(table)[name].metadata
    if isinstance(value, float) and not math.isfinite(value):
        raise BadRequest(f"{name} must be a finite number, not {value!r}")
    if limits["choices"] and value not in limits["choices"]:
        raise BadRequest(f"{name} takes one of {', '.join(limits['choices'])}, not {value!r}")
    low, high = limits["at_least"], limits["at_most"]
    above, below = limits["above"], limits["below"]
    if low is not None and not value >= low:
        raise BadRequest(f"{name} must be at least {low}, not {value!r}")
    if high is not None and not value <= high:
        raise BadRequest(f"{name} must be at most {high}, not {value!r}")
    if above is not None and not value > above:
        raise BadRequest(f"{name} must be above {above}, not {value!r}")
    if below is not None and not value < below:
        raise BadRequest(f"{name} must be below {below}, not {value!r}")


def check_values(table: Any) -> None:
    """Refuse a table with a value outside the limits written beside its key."""
    for spec in fields(table):
        check_value(spec.name, getattr(table, spec.name), type(table))


def check_together(recipe: Recipe) -> None:
    """Refuse keys that contradict each other."""
    starts = [phase.from_epoch for phase in recipe.phases]
    if starts and (starts[0] != 0 or starts != sorted(set(starts))):
        raise BadRequest(f"phases must start at epoch 0 and go upward, not {starts}")
    if any(start >= recipe.epochs for start in starts):
        raise BadRequest(f"a phase starts at epoch {starts[-1]} but epochs = {recipe.epochs}")
    if any(phase.image_size < 1 or phase.batch_size < 1 for phase in recipe.phases):
        raise BadRequest("phases need an image_size and a batch_size of at least 1")
    if recipe.warmup_epochs >= recipe.epochs:
        raise BadRequest(
            f"warmup_epochs = {recipe.warmup_epochs} leaves nothing of epochs = {recipe.epochs}"
        )
    if any(epoch < 0 for epoch in recipe.decay_epochs):
        raise BadRequest(f"decay_epochs cannot be negative: {list(recipe.decay_epochs)}")
    if recipe.scheduler == "step" and not recipe.decay_epochs:
        raise BadRequest("scheduler = step needs decay_epochs, for example [30, 60, 80]")
