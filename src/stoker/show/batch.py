"""A batch of training as the model sees it: cropped, augmented, erased and mixed.

Invariant: the images come from the loader of training and are mixed by the function of training.
Only the normalisation, which a person cannot look at, is left out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import torch

from stoker.data.dataset import Dataset
from stoker.data.loading.augment import draw
from stoker.data.loading.loader import BatchLoader, Loaded, LoaderOptions
from stoker.data.loading.order import Order, lanes_for
from stoker.errors import BadRequest
from stoker.recipe.recipe import Recipe
from stoker.recipe.schedule import Batch, Timeline
from stoker.show.sheet import Tile
from stoker.text import plural
from stoker.train.loaders import training_view
from stoker.train.mixing import Mix, MixNumbers, apply_mix, draw_mix

MOST_TILES = 256
"""Images of a sheet; of a larger batch the first ones are shown."""


def choose_batch(timeline: Timeline, epoch: int | None, step: int) -> Batch:
    """The batch of a step of the run, or of a step counted from the first one that begins in an
    epoch. Raises BadRequest where the run has none."""
    first = 0
    if epoch is not None:
        begin = epoch * timeline.samples
        if epoch < 0 or begin >= timeline.end:
            raise BadRequest(f"--epoch must be from 0 to {timeline.epochs - 1}, not {epoch}")
        steps = range(timeline.steps)
        first = bisect_left(steps, begin, key=lambda n: timeline.batch_of_step(n).position)
    if step < 0 or first + step >= timeline.steps:
        raise BadRequest(f"--step must be from 0 to {timeline.steps - first - 1}, not {step}")
    return timeline.batch_of_step(first + step)


def load_batch(dataset: Dataset, recipe: Recipe, timeline: Timeline, batch: Batch) -> Loaded:
    """A batch as training loads it. Raises StokerError for a damaged shard or image."""
    split = dataset.split("train")
    lanes = lanes_for(len(split), [stretch.batch_size for stretch in timeline.stretches])
    order = Order(split.shard_sizes, dataset.fingerprint, recipe.seed, lanes)
    options = LoaderOptions(
        draw=lambda batch, samples, epochs: draw_mix(recipe, batch.image_size, samples, epochs),
        on_damage=recipe.on_damage,
    )
    loader = BatchLoader(split, order, training_view(recipe), prefetch=1, options=options)
    try:
        return next(loader.batches([batch]))
    finally:
        loader.close()


def tiles_of(loaded: Loaded, recipe: Recipe, classes: Sequence[str]) -> list[Tile]:
    """A tile for each image: its class or classes, and what was done to it."""
    count = min(len(loaded.labels), MOST_TILES)
    mix: MixNumbers | None = loaded.drawn
    pixels = torch.from_numpy(loaded.images).permute(0, 3, 1, 2).float()
    mixed = apply_mix(Mix.of(mix), pixels).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    view, size = training_view(recipe), loaded.batch.image_size
    drawn = draw(view.augmentation, view.seed, size, loaded.samples, loaded.epochs)
    tiles = []
    for number in range(count):
        lines = [*class_lines(number, loaded, mix, classes), *drawn[number].texts()]
        tiles.append(Tile(np.ascontiguousarray(mixed[number]), tuple(lines)))
    return tiles


def class_lines(
    number: int, loaded: Loaded, mix: MixNumbers | None, classes: Sequence[str]
) -> list[str]:
    """The class of an image, or how much each class of a mixed image counts."""
    own = classes[int(loaded.labels[number])]
    partner = min(number ^ 1, len(loaded.labels) - 1)
    if mix is None or mix.share[number] == 1 or partner == number:
        return [own]
    share, other = float(mix.share[number]), classes[int(loaded.labels[partner])]
    return [f"{share:.0%} {own}", f"{1 - share:.0%} {other}"]


def batch_line(loaded: Loaded, timeline: Timeline, shown_images: int, sheet: str) -> str:
    """What was drawn, in one line."""
    batch = loaded.batch
    images = plural(batch.size, "image")
    part = "" if shown_images == batch.size else f"the first {shown_images} of "
    return (
        f"{sheet}: {part}{images} of {batch.image_size} px, step {batch.step} of "
        f"{timeline.steps:,}, epoch {batch.position // timeline.samples}"
    )
