"""What can be refused before anything is written, and the loaders that feed a run.

Invariant: all that depends on the set, the recipe and this machine's memory is settled here, before
step 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from stoker.data.dataset import Dataset, SplitIndex
from stoker.data.loading.crops import View
from stoker.data.loading.loader import Loader, LoaderOptions
from stoker.data.loading.memory import LoaderMemory, fit_prefetch, total_bytes
from stoker.data.loading.order import Order, lanes_for
from stoker.data.loading.small_images import CACHE_BYTES
from stoker.errors import BadRequest
from stoker.host.limits import allowed_memory, usable_cores, usable_memory
from stoker.recipe.recipe import Recipe
from stoker.recipe.schedule import Timeline
from stoker.train.device import batch_memory, set_arithmetic
from stoker.train.evaluate import Evaluator
from stoker.train.model.build import Normalise, build_model
from stoker.train.process_group import Ranks


@dataclass(frozen=True)
class Fit:
    """How loading fits into this machine."""

    threads: int
    prefetch: int
    cache_bytes: int
    notes: list[str]
    """What has to be said about it."""


@dataclass(frozen=True)
class Prepared:
    """What can be refused, made before anything is written."""

    dataset: Dataset
    recipe: Recipe
    split: SplitIndex
    evaluated: SplitIndex | None
    timeline: Timeline
    model: nn.Module
    normalise: Normalise
    fit: Fit

    @property
    def lanes(self) -> int:
        """Lanes of the order that suit this recipe."""
        sizes = [stretch.batch_size for stretch in self.timeline.stretches]
        return lanes_for(len(self.split), sizes)


def prepare(dataset: Dataset, recipe: Recipe, ranks: Ranks) -> Prepared:
    """Refuse what cannot be trained; build the network."""
    set_arithmetic(recipe)
    split = dataset.split("train")
    timeline = Timeline.of(recipe, len(split))
    smallest = min(stretch.batch_size for stretch in timeline.stretches)
    if smallest < 2 * ranks.world:
        raise BadRequest(
            f"batch_size = {smallest} is too small for {ranks.world} ranks: at least 2 each"
        )
    model, normalise = build_model(recipe, len(dataset.classes))
    layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
    model = model.to(device=ranks.device, memory_format=layout)  # type: ignore[call-overload]
    evaluated = dataset.split(dataset.eval_split) if dataset.eval_split else None
    fit = fit_of(recipe, timeline, split, evaluated, ranks)
    return Prepared(dataset, recipe, split, evaluated, timeline, model, normalise, fit)


def fit_of(
    recipe: Recipe,
    timeline: Timeline,
    split: SplitIndex,
    evaluated: SplitIndex | None,
    ranks: Ranks,
) -> Fit:
    """How loading fits into this machine; refuses what does not."""
    threads = recipe.threads or max(1, usable_cores() // ranks.local_world)
    allowed_bytes = allowed_memory(recipe.max_ram, usable_memory(), ranks.local_world)
    stretches = timeline.stretches
    largest = max(-(-s.batch_size // ranks.world) * s.image_size**2 * 3 for s in stretches)
    loaders = [LoaderMemory(largest, threads, sum(split.largest))]
    if evaluated is not None:
        side = max(stretch.image_size for stretch in stretches)
        batch = min(recipe.eval_batch_size, len(evaluated))
        loaders.append(LoaderMemory(batch * side**2 * 3, threads, sum(evaluated.largest)))
    prefetch, note = fit_prefetch(loaders, recipe.prefetch, allowed_bytes)
    free_bytes = allowed_bytes - total_bytes(loaders, prefetch)
    cache_bytes = min(CACHE_BYTES, free_bytes // len(loaders))
    return Fit(threads, prefetch, cache_bytes, [note] if note else [])


@dataclass(frozen=True)
class Loaders:
    """The loaders of a run, and what had to be said about them."""

    loader: Loader
    evaluator: Evaluator | None
    notes: list[str]


def feed(prepared: Prepared, lanes: int, ranks: Ranks, tell: Callable[[str], None]) -> Loaders:
    """Loaders that fit into this machine. The lanes are those that the run began with: another
    batch size leaves the order alone."""
    recipe, split, dataset = prepared.recipe, prepared.split, prepared.dataset
    fit = prepared.fit
    view = View(
        crop=recipe.crop,
        crop_scale=recipe.crop_scale,
        crop_pad=recipe.crop_pad,
        crop_pct=recipe.crop_pct,
        hflip=recipe.hflip,
        seed=recipe.seed,
    )
    loader = Loader(
        split,
        Order(split.shard_sizes, dataset.fingerprint, recipe.seed, lanes),
        view,
        rank=ranks.rank,
        world=ranks.world,
        threads=fit.threads,
        prefetch=fit.prefetch,
        options=LoaderOptions(
            allocate=batch_memory(ranks.device),
            cache_bytes=fit.cache_bytes,
            on_damage=recipe.on_damage,
            report=tell,
        ),
    )
    evaluator = None
    if prepared.evaluated is not None:
        evaluator = Evaluator(
            prepared.evaluated,
            View(crop_pct=recipe.crop_pct),
            ranks,
            batch_size=recipe.eval_batch_size,
            threads=fit.threads,
            prefetch=fit.prefetch,
            cache_bytes=fit.cache_bytes,
        )
    return Loaders(loader, evaluator, fit.notes)
