"""How many images one core of this machine loads in a second: measured, or read from doctor's file.

Invariant: the rate is that of CPU seconds, not of the clock, so that other programs on the machine
change little. It is measured on the user's own images, with the recipe's crop and augmentation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.errors import BadRequest
from stoker.host.limits import usable_cores
from stoker.host.plain_file import read_plain
from stoker.recipe.recipe import Recipe
from stoker.run.kinds import Field, Required, fits, is_count, is_number
from stoker.text import shown

if TYPE_CHECKING:
    from stoker.data.dataset import Dataset

SECONDS = 1.5
"""For each stage of loading; there are six for each image size."""
STAGE = "loader warm"
LARGEST_FILE = 16 << 20
DOCTOR_FILE = {
    "loader": Field(
        fits(
            {
                "image_size": Field(is_count, Required),
                "stages": Field(
                    fits({STAGE: Field(fits({"images_per_cpu_s": Field(is_number, Required)}))}),
                    Required,
                ),
            }
        ),
        Required,
    ),
    "environment": Field(fits({"cores": Field(is_count, Required)})),
}
"""The fields of a file of `stoker doctor --json` that a plan reads."""


@dataclass(frozen=True)
class LoadingProbe:
    """Images that one core loads in a second, by image size, and where that comes from."""

    images_per_core_s: dict[int, float]
    source: str
    cores: int = 1
    """Of the machine that was measured."""


def measure_probe(dataset: Dataset, recipe: Recipe, sizes: Iterable[int]) -> LoadingProbe:
    """Measure on this machine, for each image size of the run."""
    from stoker.measure.trials.loading import Setting, measure_loading
    from stoker.train.loaders import training_view

    rates = {}
    for size in sorted(set(sizes)):
        setting = Setting(
            size,
            min(recipe.batch_size, 256),
            recipe.crop,
            recipe.threads,
            SECONDS,
            recipe.crop_scale,
            training_view(recipe).augmentation,
        )
        rates[size] = measure_loading(dataset, setting).passes[STAGE].images_per_cpu_s
    return LoadingProbe(rates, "measured on this machine", usable_cores())


def read_probe(path: Path, sizes: Iterable[int]) -> LoadingProbe:
    """The rate in a file of `stoker doctor DATA --json FILE`, at each of some sizes. A larger image
    takes time in proportion to its pixels at most, so the rate is scaled down by that.
    Raises BadRequest for another file."""
    try:
        figures = json.loads(read_plain(path, LARGEST_FILE))
    except (OSError, ValueError, RecursionError) as error:
        raise BadRequest(f"cannot read {shown(str(path))}: {shown(str(error))}") from None
    if not fits(DOCTOR_FILE)(figures):
        raise BadRequest(
            f"{shown(str(path))} has no measured loader: write it with "
            "stoker doctor DATA --json FILE, where DATA is a packed set"
        )
    loader = figures["loader"]
    rate = loader["stages"].get(STAGE, {}).get("images_per_cpu_s", 0.0)
    if not 0 < rate < 1e9:
        raise BadRequest(f"{shown(str(path))} says that a core loads {rate:g} images a second")
    measured = loader["image_size"]
    return LoadingProbe(
        {size: rate * min(1.0, (measured / size) ** 2) for size in set(sizes)},
        f"doctor's file {path.name}",
        figures.get("environment", {}).get("cores", 1),
    )
