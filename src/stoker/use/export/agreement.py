"""Whether an exported program gives the answers of the model, on real images.

Invariants: both get the same bytes: those of the evaluation, by the same loader, where the run's
set is still there; else generated ones, which the result says. A program is never called right on
trust: it is read back from its file and run on all images at once and on one alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stoker.data.dataset import Dataset
from stoker.data.loading.crops import View
from stoker.data.loading.loader import BatchLoader
from stoker.data.loading.order import InOrder
from stoker.errors import StokerError
from stoker.recipe.schedule import Batch
from stoker.stores.settings import was_named
from stoker.use.classifier import Classifier
from stoker.use.exported.files import GRAPH, PROGRAM
from stoker.use.exported.onnx_model import INPUT, new_session

IMAGES = 64
"""Images that are compared."""
LOGIT_LIMIT = 1e-3
"""Largest difference of a logit, as a share of the largest logit (of 1, where all are smaller)."""
PROBABILITY_LIMIT = 1e-4
"""Largest difference of a probability. Other sums of 32-bit floats differ by less."""
Answer = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Images as bytes -> logits, probabilities"""


@dataclass(frozen=True)
class Difference:
    """How far the answers of a program are from those of the model."""

    logits: float
    probabilities: float
    other_classes: int
    """Images with another most probable class."""
    largest_logit: float

    @property
    def is_small(self) -> bool:
        limit = LOGIT_LIMIT * max(self.largest_logit, 1)
        # Not "larger than": a difference that is no number is not small.
        return self.logits <= limit and self.probabilities <= PROBABILITY_LIMIT

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class CheckImages:
    """The images that programs are compared on."""

    images: Tensor
    kind: str
    """validation, test, or generated"""


def check_images(classifier: Classifier, data: str, fingerprint: str) -> CheckImages:
    """The first images of the run's evaluation; generated ones where its set is not there, or at a
    location that the run alone names."""
    size = classifier.preprocessing.image_size
    try:
        if not was_named(data):
            raise StokerError("the run alone names this place")
        dataset = Dataset(data)
        split = dataset.eval_split
        if split is None or dataset.fingerprint != fingerprint:
            raise StokerError("no evaluation of this run used this set")
        view = View(crop_pct=classifier.preprocessing.crop_pct)
        count = min(dataset.images(split), IMAGES)
        with closing(BatchLoader(dataset.split(split), InOrder(), view, threads=1)) as loader:
            loaded = next(loader.batches([Batch(0, 0, count, size)]))
            kind = {"val": "validation"}.get(split, split)
            return CheckImages(torch.from_numpy(loaded.images.copy()), kind)
    except (StokerError, OSError):  # missing or damaged: that is no trouble of the export
        noise = np.random.default_rng(0).integers(0, 256, (IMAGES, size, size, 3), np.uint8)
        return CheckImages(torch.from_numpy(noise), "generated")


def program_answer(path: Path) -> Answer:
    """The answers of a file that torch.export wrote just now."""
    answer: Answer = torch.export.load(path).module()
    return answer


def graph_answer(path: Path) -> Answer:
    """The answers of an ONNX file by onnxruntime."""
    session = new_session(path.read_bytes())

    def answer(images: Tensor) -> tuple[Tensor, Tensor]:
        logits, probabilities = session.run(None, {INPUT: images.numpy()})
        return torch.from_numpy(logits), torch.from_numpy(probabilities)

    return answer


ANSWERS: dict[str, Callable[[Path], Answer]] = {PROGRAM: program_answer, GRAPH: graph_answer}


@torch.no_grad()
def difference(path: Path, classifier: Classifier, check: CheckImages) -> Difference:
    """How far a program's answers are from the model's. Raises StokerError where that is more than
    the limits, or where it does not run."""
    try:
        answer = ANSWERS[path.name](path)
        logits, probabilities = answer(check.images)
        alone = answer(check.images[:1])
    except Exception as error:  # runtimes raise errors of many kinds
        raise StokerError(f"{path.name} does not run: {error}; nothing was exported") from error
    own = classifier.logits(check.images)
    own_alone = classifier.logits(check.images[:1])
    measured = Difference(
        max(largest(logits - own), largest(alone[0] - own_alone)),
        max(largest(probabilities - own.softmax(1)), largest(alone[1] - own_alone.softmax(1))),
        int((logits.argmax(1) != own.argmax(1)).sum()),
        largest(own),
    )
    if not measured.is_small:
        raise StokerError(
            f"{path.name} gives other answers than the model: on {len(check.images)} {check.kind} "
            f"images its logits differ by up to {measured.logits:.2g} and its probabilities by up "
            f"to {measured.probabilities:.2g} (limits: {LOGIT_LIMIT:g} of the largest logit, "
            f"{PROBABILITY_LIMIT:g}); nothing was exported"
        )
    return measured


def largest(numbers: Tensor) -> float:
    return float(numbers.abs().max())
