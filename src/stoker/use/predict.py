"""A model's answers for images from anywhere, in the order of the images.

    source -> batches (threads) -> model -> classes and probabilities, features

Invariants: an image of a packed set gets the pixels and the logits of the run's own evaluation, so
that accuracy counted from answers is evaluation's. Of equal logits the lower class comes first.
Memory does not grow with the number of images in files, archives and lists. While the device
computes one batch, the answers of the batch before are read and the next ones are decoded.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stoker.data.dataset import SplitIndex
from stoker.data.loading.crops import View
from stoker.data.loading.loader import BatchLoader, LoaderOptions
from stoker.data.loading.order import InOrder
from stoker.data.packing.memory import packing_workers
from stoker.errors import BadRequest, StokerError
from stoker.host.limits import usable_cores, usable_memory
from stoker.host.out_of_memory import is_out_of_memory
from stoker.recipe.schedule import Batch
from stoker.run.directory import class_difference
from stoker.text import shown
from stoker.train.process_group import own_device
from stoker.train.transfer import transfer_to
from stoker.use.classifier import Classifier
from stoker.use.features import FeatureTap, Floats, as_numpy
from stoker.use.file_loader import FileLoader, NamedBatch
from stoker.use.image_stream import ImageSource, NamedImages, StoredImages
from stoker.use.prepare import Preparation

NOT_FINITE = "the model's output for it is not finite"
PREFETCH = 3


@dataclass(frozen=True)
class NamedAnswers:
    """What a model says of some images: for each its name, and why it has no answer or None; its
    most probable classes by number with their probabilities; the vector before the head."""

    names: list[str]
    errors: list[str | None]
    classes: NDArray[np.int64]
    probabilities: Floats
    features: Floats | None = None


@dataclass
class _Launched:
    """A batch that the device may still compute."""

    batch: NamedBatch
    numbers: tuple[Tensor, Tensor, Tensor, Tensor | None]

    def read(self) -> NamedAnswers:
        classes, probabilities, finite, features = self.numbers
        errors = [
            error if error is not None or is_finite else NOT_FINITE
            for error, is_finite in zip(self.batch.errors, finite.tolist(), strict=True)
        ]
        vectors = None if features is None else as_numpy(features)
        return NamedAnswers(
            self.batch.names, errors, classes.cpu().numpy(), probabilities.cpu().numpy(), vectors
        )


class Predictor:
    """Asks a classifier about images. `top` classes each; 0 takes the run's batch size, and as many
    threads as there are cores and memory for."""

    def __init__(
        self,
        classifier: Classifier,
        *,
        top: int = 1,
        batch_size: int = 0,
        threads: int = 0,
        features: bool = False,
    ) -> None:
        self._classifier = classifier
        self.classes = classifier.classes
        self.top = min(top, len(self.classes))
        self._batch_size = batch_size or classifier.recipe.eval_batch_size
        self._threads = threads or packing_workers(0.0, usable_memory(), usable_cores())
        self._transfer = transfer_to(classifier.device)
        self._tap = FeatureTap(classifier.model, len(self.classes)) if features else None

    def close(self) -> None:
        if self._tap:
            self._tap.close()

    def answers(self, sources: Sequence[ImageSource]) -> Generator[NamedAnswers]:
        """Yield the answers for all images, a batch at a time. Raises BadRequest for a set of other
        classes, StokerError for a damaged set or archive, or where memory runs out."""
        for source in sources:
            if isinstance(source, StoredImages):
                require_same_classes(self.classes, source)
        # Decoding silences the warnings of one image at a time, which threads undo for each other.
        with warnings.catch_warnings(action="ignore"):
            for source in sources:
                yield from self._of_batches(self._batches(source))

    def _batches(self, source: ImageSource) -> Iterator[NamedBatch]:
        if isinstance(source, NamedImages):
            return self._file_batches(source)
        return (
            batch
            for name in source.splits
            for batch in self._stored_batches(source.dataset.split(name))
        )

    def _file_batches(self, source: NamedImages) -> Iterator[NamedBatch]:
        spec = self._classifier.preprocessing
        loader = FileLoader(
            Preparation(spec.storage, spec.crop_pct),
            self._batch_size,
            spec.image_size,
            threads=self._threads,
            prefetch=PREFETCH,
            memory=self._transfer.memory(PREFETCH + 2),
        )
        with closing(loader):
            yield from loader.batches(source.items())

    def _stored_batches(self, split: SplitIndex) -> Iterator[NamedBatch]:
        spec, size = self._classifier.preprocessing, self._batch_size
        paths = split.rows.paths()
        options = LoaderOptions(memory=lambda: self._transfer.memory(PREFETCH + 2))
        view = View(crop_pct=spec.crop_pct)
        loader = BatchLoader(
            split, InOrder(), view, threads=self._threads, prefetch=PREFETCH, options=options
        )
        plan = (
            Batch(step, begin, min(size, len(split) - begin), spec.image_size)
            for step, begin in enumerate(range(0, len(split), size))
        )
        with closing(loader):
            for loaded in loader.batches(plan):
                names = list(islice(paths, loaded.batch.size))
                yield NamedBatch(names, [None] * len(names), loaded)

    def _of_batches(self, batches: Iterator[NamedBatch]) -> Iterator[NamedAnswers]:
        launched: _Launched | None = None
        while (batch := self._next(batches)) is not None:
            current = _Launched(batch, self._ask(batch))
            if launched is not None:
                yield launched.read()
            launched = current
        if launched is not None:
            yield launched.read()

    def _next(self, batches: Iterator[NamedBatch]) -> NamedBatch | None:
        """The next batch; None after the last one."""
        with self._in_memory(self._batch_size):
            return next(batches, None)

    @contextmanager
    def _in_memory(self, images: int) -> Iterator[None]:
        """Turn the errors of a batch of so many images into a StokerError with what to change."""
        side = self._classifier.preprocessing.image_size
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                raise StokerError(
                    f"{images} images at once do not fit into memory, at {side} x {side} pixels: "
                    "give a smaller --batch-size"
                ) from error
            raise

    @torch.no_grad()
    def _ask(self, batch: NamedBatch) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Classes, probabilities, whether all logits are finite, and features; on the device."""
        with self._in_memory(len(batch.names)):
            sent = self._transfer.send(batch.loaded)
            logits = self._classifier.logits(sent.images)
            self._transfer.release(sent)
        classes = logits.sort(dim=1, descending=True, stable=True).indices[:, : self.top]
        probabilities = logits.softmax(1).gather(1, classes)
        features = self._tap.take() if self._tap else None
        return classes, probabilities, logits.isfinite().all(1), features


def own_device_alone() -> torch.device:
    """The device of this process, as the only one here: a GPU, or all cores. Raises BadRequest
    where a GPU does not work."""
    device = own_device(0, 1)
    if device.type == "cpu":
        torch.set_num_threads(usable_cores())
    return device


def require_same_classes(classes: list[str], source: StoredImages) -> None:
    """Raise BadRequest, with the difference, where a packed set has other classes than a model."""
    others = source.dataset.classes
    if others != classes:
        difference = class_difference(classes, others) or "; the same ones in another order"
        raise BadRequest(
            f"{shown(source.dataset.name)} has other classes than the model{difference}: to "
            "predict its images all the same, name the folder or archive they come from"
        )
