"""The checks before a run is written, and the loaders of the run.

Invariant: everything that depends on the dataset, the recipe and the memory of this machine is
decided here, before step 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from stoker.data.class_weights import OFF, class_weights, weights_note
from stoker.data.dataset import Dataset, SplitIndex
from stoker.data.loading.augment import Augmentation
from stoker.data.loading.crops import View
from stoker.data.loading.loader import BatchLoader, LoaderOptions
from stoker.data.loading.memory import LoaderMemory, fit_prefetch, total_bytes
from stoker.data.loading.order import InOrder, Order, lanes_for
from stoker.data.loading.small_images import CACHE_BYTES
from stoker.data.loading.stored_size import enlarged_note
from stoker.errors import BadRequest
from stoker.host.limits import allowed_memory, usable_cores, usable_memory
from stoker.recipe.recipe import Recipe
from stoker.recipe.schedule import Batch, Timeline, check_batch
from stoker.train.device import build_on_device, set_arithmetic
from stoker.train.evaluate import Evaluator
from stoker.train.mixing import Ints, MixNumbers, draw_mix
from stoker.train.model.build import Normalise, check_image_sizes
from stoker.train.model.freeze import plan_freeze
from stoker.train.model.names import check_fine_tuning
from stoker.train.model.start import RULES, Start, load_start, normalise_of
from stoker.train.model.weight_places import InputFacts
from stoker.train.process_group import Ranks
from stoker.train.transfer import BatchTransfer


@dataclass(frozen=True)
class Fit:
    """How the loaders use this machine, and messages for the user about it."""

    threads: int
    prefetch: int
    cache_bytes: int
    notes: list[str]


@dataclass(frozen=True)
class Prepared:
    """The checked inputs of a run, made before anything is written."""

    dataset: Dataset
    recipe: Recipe
    split: SplitIndex
    evaluated: SplitIndex | None
    timeline: Timeline
    model: nn.Module
    normalise: Normalise
    fit: Fit
    start: Start | None = None
    """The weights that the model has now, if any were loaded; a checkpoint replaces them."""
    machines: int = 1
    """How many machines train together, as far as each has as many ranks as this one."""

    @property
    def lanes(self) -> int:
        """The number of lanes of the order that suits this recipe."""
        sizes = [stretch.batch_size for stretch in self.timeline.stretches]
        return lanes_for(len(self.split), sizes, machines=self.machines)

    def weights_on(self, device: torch.device) -> Tensor | None:
        """The weights of the classes on a device; None where all count the same."""
        if self.recipe.class_weights == OFF:
            return None
        weights = class_weights(self.recipe.class_weights, self.split.rows.class_counts)
        return torch.from_numpy(weights).float().to(device)


def prepare(
    dataset: Dataset, recipe: Recipe, ranks: Ranks, known_input: InputFacts | None = None
) -> Prepared:
    """Build the model and plan the loaders. `known_input`: what a run that exists has recorded; its
    weights come from a checkpoint, and `with_start` loads others where there is none. Raises
    BadRequest for what cannot be trained."""
    check_fine_tuning(recipe)
    set_arithmetic(recipe)
    split = dataset.split("train")
    timeline = Timeline.of(recipe, len(split))
    check_batch(recipe, ranks.world)
    evaluated = dataset.split(dataset.eval_split) if dataset.eval_split else None
    fit = fit_loading(recipe, timeline, split, evaluated, ranks)
    fit.notes.extend(size_notes(dataset, timeline, split, evaluated))
    if recipe.class_weights != OFF:
        counts = split.rows.class_counts
        fit.notes.append(weights_note(recipe.class_weights, counts, dataset.classes))
    if (recipe.patience or recipe.target) and evaluated is None:
        raise BadRequest(
            f"--{'patience' if recipe.patience else 'target'} needs an evaluation, and this set "
            "has no images for one: pack it again with --val-share 0.1"
        )
    model, normalise = build_on_device(recipe, len(dataset.classes), ranks.device)
    check_image_sizes(model, recipe, len(dataset.classes))
    plan_freeze(recipe, model)
    machines = ranks.world // max(ranks.local_world, 1)
    prepared = Prepared(
        dataset, recipe, split, evaluated, timeline, model, normalise, fit, machines=machines
    )
    if known_input is None:
        return with_start(prepared, RULES)
    return replace(prepared, normalise=normalise_of(known_input, normalise))


def with_start(prepared: Prepared, rules: int) -> Prepared:
    """With the weights that the recipe names in the model. Raises BadRequest where they do not fit
    it, or cannot be read."""
    start = load_start(prepared.recipe, prepared.model, prepared.dataset.classes, rules)
    if start is None:
        return prepared
    prepared.fit.notes.extend(start.note(prepared.recipe))
    normalise = normalise_of(start.input, prepared.normalise)
    return replace(prepared, start=start, normalise=normalise)


def size_notes(
    dataset: Dataset, timeline: Timeline, split: SplitIndex, evaluated: SplitIndex | None
) -> list[str]:
    """A note where images are stored smaller than the model's input: train's, else evaluation's."""
    image_size = max(stretch.image_size for stretch in timeline.stretches)
    splits = [split, evaluated] if evaluated else [split]
    notes = (enlarged_note(one, dataset.description["storage"], image_size) for one in splits)
    return [note for note in notes if note][:1]


def host_bytes(batch_bytes: int, pinned: bool) -> int:
    """Memory of a batch buffer: torch rounds pinned memory up to a power of two."""
    return 1 << (batch_bytes - 1).bit_length() if pinned else batch_bytes


def fit_loading(
    recipe: Recipe,
    timeline: Timeline,
    split: SplitIndex,
    evaluated: SplitIndex | None,
    ranks: Ranks,
) -> Fit:
    """How the loaders use this machine. Raises BadRequest if they do not fit into memory."""
    threads = recipe.threads or max(1, usable_cores() // ranks.local_world)
    allowed_bytes = allowed_memory(recipe.max_ram, usable_memory(), ranks.local_world)
    stretches = timeline.stretches
    largest = max(-(-s.batch_size // ranks.world) * s.image_size**2 * 3 for s in stretches)
    on_gpu = ranks.device.type == "cuda"
    loader_memory = partial(LoaderMemory, threads=threads, buffers=2 if on_gpu else 1)
    loaders = [loader_memory(host_bytes(largest, on_gpu), image_bytes=sum(split.largest))]
    if evaluated is not None:
        side = max(stretch.image_size for stretch in stretches)
        batch = min(recipe.eval_batch_size, len(evaluated))
        largest = host_bytes(batch * side**2 * 3, on_gpu)
        loaders.append(loader_memory(largest, image_bytes=sum(evaluated.largest)))
    prefetch, note = fit_prefetch(loaders, recipe.prefetch, allowed_bytes)
    free_bytes = allowed_bytes - total_bytes(loaders, prefetch)
    cache_bytes = min(CACHE_BYTES, free_bytes // len(loaders))
    return Fit(threads, prefetch, cache_bytes, [note] if note else [])


@dataclass(frozen=True)
class Loaders:
    """The loaders of a run: for training, and for evaluation if the dataset has a split for it."""

    loader: BatchLoader
    evaluator: Evaluator | None

    def close(self) -> None:
        self.loader.close()
        if self.evaluator:
            self.evaluator.loader.close()


def training_view(recipe: Recipe) -> View:
    """How a recipe shows training images."""
    return View(
        crop=recipe.crop,
        crop_scale=recipe.crop_scale,
        crop_pad=recipe.crop_pad,
        crop_pct=recipe.crop_pct,
        hflip=recipe.hflip,
        seed=recipe.seed,
        augmentation=Augmentation(
            recipe.auto_augment,
            recipe.rand_ops,
            recipe.rand_magnitude,
            recipe.color_jitter,
            recipe.random_erasing,
        ),
    )


def build_loaders(
    prepared: Prepared,
    lanes: int,
    ranks: Ranks,
    transfer: BatchTransfer,
    report: Callable[[str], None],
) -> Loaders:
    """The loaders of a run. `lanes` is the number that the run began with, so that another batch
    size does not change the order; `report` takes messages for the user."""
    recipe, split, fit = prepared.recipe, prepared.split, prepared.fit
    fitted_loader = partial(BatchLoader, threads=fit.threads, prefetch=fit.prefetch)
    memory = partial(transfer.memory, fit.prefetch + 2)
    options = LoaderOptions(memory=memory, cache_bytes=fit.cache_bytes, report=report)

    def draw(batch: Batch, samples: Ints, epochs: Ints) -> MixNumbers | None:
        return draw_mix(recipe, batch.image_size, samples, epochs)

    view = training_view(recipe)
    order = Order(split.shard_sizes, prepared.dataset.fingerprint, recipe.seed, lanes)
    training = replace(options, draw=draw, on_damage=recipe.on_damage)
    loader = fitted_loader(split, order, view, rank=ranks.rank, world=ranks.world, options=training)
    if prepared.evaluated is None:
        return Loaders(loader, None)
    view = View(crop_pct=recipe.crop_pct)
    in_order = fitted_loader(prepared.evaluated, InOrder(), view, options=options)
    amp = recipe.amp if ranks.device.type == "cuda" else "off"
    size = recipe.eval_batch_size
    return Loaders(loader, Evaluator(in_order, ranks, size, amp, transfer))
