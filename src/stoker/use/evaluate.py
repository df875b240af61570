"""A trained model on the images of a packed set: the figures of training's own evaluation.

Invariants: the same `Evaluator` as in training does the work, in the same batches, so its figures
come out again to the last digit. Every rank takes the same path here. Nothing is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from stoker.data.dataset import SplitIndex
from stoker.data.loading.crops import View
from stoker.data.loading.loader import BatchLoader, LoaderOptions
from stoker.data.loading.memory import LoaderMemory, fit_prefetch, total_bytes
from stoker.data.loading.render import RENDERERS
from stoker.data.loading.small_images import CACHE_BYTES
from stoker.errors import BadRequest, StokerError
from stoker.host.limits import allowed_memory, usable_cores, usable_memory
from stoker.host.out_of_memory import is_out_of_memory
from stoker.run.evaluation import EvaluationReport
from stoker.text import plural
from stoker.train.evaluate import MOST_KEPT, Accuracy, Answers, Evaluator
from stoker.train.loaders import host_bytes
from stoker.train.process_group import Ranks
from stoker.train.records.tally import highest_losses, report_of, worst_samples
from stoker.train.transfer import transfer_to
from stoker.use.classifier import Classifier
from stoker.use.selection import Chosen, Ints, Selection

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class EvaluateOptions:
    """How a model is evaluated; 0 is the run's own value."""

    batch_size: int = 0
    threads: int = 0
    hflip: bool = False
    """Average the logits of each image and of its mirror image."""
    worst: int = 0
    """How many samples with the highest loss are reported."""


@dataclass(frozen=True)
class Evaluation:
    """The figures of an evaluation, on rank 0."""

    report: EvaluationReport
    seconds: float


class Mirrored(nn.Module):
    """The mean of a model's logits for an image and for its mirror image."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images).float()
        mirrored: Tensor = self.model(images.flip(3)).float()
        return (logits + mirrored) / 2


@dataclass(frozen=True)
class ChosenEvaluator(Evaluator):
    """Evaluates a model on the samples that its loader's arrangement has."""

    samples: int = 0

    @property
    def images(self) -> int:
        return self.samples


def evaluate(
    classifier: Classifier,
    selection: Selection,
    ranks: Ranks,
    options: EvaluateOptions,
    progress: Callable[[int, int], None] = lambda done, total: None,
    note: Callable[[str], None] = lambda text: None,
) -> Evaluation | None:
    """Evaluate a model; None on ranks other than 0. `progress` gets the images done, about, and
    their number. Raises BadRequest where loading does not fit into memory, StokerError where an
    image is damaged or memory runs out."""
    images = len(selection.samples)
    if images > MOST_KEPT:
        raise BadRequest(
            f"{images:,} images are more than an evaluation takes ({MOST_KEPT:,}): name a split or "
            "a set with fewer"
        )
    evaluator = build_evaluator(classifier, selection, ranks, options, note)
    model = Mirrored(classifier.model) if options.hflip else classifier.model
    turns = iter(range(0, images + 1, evaluator.batch_size * ranks.world))

    def count() -> bool:
        progress(min(next(turns, images), images), images)
        return False

    began = time.perf_counter()
    try:
        size = classifier.preprocessing.image_size
        evaluated = evaluator.run_with_answers(model, size, classifier.to_input, count)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise StokerError(
            f"an evaluation of {plural(evaluator.batch_size, 'image')} at once runs out of memory: "
            "lower --batch-size"
        ) from error
    finally:
        evaluator.loader.close()
    seconds = time.perf_counter() - began
    assert evaluated is not None
    accuracy, answers = evaluated
    if answers is None:
        return None
    report = report_on(classifier.classes, selection, accuracy, answers, options.worst)
    return Evaluation(report, seconds)


def build_evaluator(
    classifier: Classifier,
    selection: Selection,
    ranks: Ranks,
    options: EvaluateOptions,
    note: Callable[[str], None],
) -> Evaluator:
    """The evaluator of training, over the selected images."""
    recipe, split = classifier.recipe, selection.split
    batch_size = options.batch_size or recipe.eval_batch_size
    threads = options.threads or max(1, usable_cores() // ranks.local_world)
    on_gpu = ranks.device.type == "cuda"
    side = classifier.preprocessing.image_size
    batch_bytes = host_bytes(min(batch_size, len(selection.samples)) * side**2 * 3, on_gpu)
    memory = LoaderMemory(batch_bytes, threads, sum(split.largest), buffers=2 if on_gpu else 1)
    allowed_bytes = allowed_memory(recipe.max_ram, usable_memory(), ranks.local_world)
    prefetch, text = fit_prefetch([memory], recipe.prefetch, allowed_bytes)
    if text:
        note(text)
    transfer = transfer_to(ranks.device)
    loader = BatchLoader(
        split,
        Chosen(selection.samples),
        View(crop_pct=classifier.preprocessing.crop_pct),
        threads=threads,
        prefetch=prefetch,
        options=LoaderOptions(
            memory=partial(transfer.memory, prefetch + 2),
            cache_bytes=min(CACHE_BYTES, allowed_bytes - total_bytes([memory], prefetch)),
        ),
    )
    samples = len(selection.samples)
    return ChosenEvaluator(loader, ranks, batch_size, classifier.amp, transfer, samples)


def report_on(
    classes: list[str], selection: Selection, accuracy: Accuracy, answers: Answers, worst: int
) -> EvaluationReport:
    """The report with its worst samples. Raises StokerError where their paths cannot be read."""
    labels = selection.labels
    report = report_of(selection.name, classes, labels, accuracy, answers)
    chosen: Ints = highest_losses(answers.loss, worst)
    paths = selection.split.rows.paths_of(selection.samples[chosen].tolist())
    rows = worst_samples(chosen, selection.samples, paths, labels, answers)
    return replace(report, worst=rows)


def stored_image(split: SplitIndex, sample: int, most_side: int) -> Pixels:
    """The stored image of a sample, shrunk until no side is longer than `most_side` pixels. Raises
    StokerError where it cannot be read."""
    width, height = int(split.widths[sample]), int(split.heights[sample])
    factor = min(1.0, most_side / max(width, height))
    shape = (max(round(height * factor), 1), max(round(width * factor), 1), 3)
    image = np.empty(shape, np.uint8)
    try:
        data = split.bytes_of(sample)
        RENDERERS[split.codec](data, width, height, [0, 0, width, height], False, image)
    except ValueError as error:
        raise StokerError(f"{split.origin_of(sample)} is damaged: {error}") from error
    return image
