"""Which images of a packed set a model is evaluated on, with the labels as the model numbers them.

Invariants: classes are matched by name, whatever their order in the set. Images of a class that the
model does not know are left out and counted, never relabelled. No torch, so that a wrong request is
answered quickly.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.data.dataset import Dataset, SplitIndex
from stoker.data.loading.order import InOrder
from stoker.data.sources.classes import LIKE_A_SPLIT
from stoker.errors import BadRequest
from stoker.text import plural, shown

Ints = NDArray[np.int64]
NAMES_SHOWN = 5
"""Names of a list in a message."""


@dataclass(frozen=True)
class Selection:
    """The images of a split that are evaluated."""

    name: str
    split: SplitIndex
    """With the labels of the model; -1 for a class that it does not know."""
    samples: Ints
    """The numbers of the images in the split, in order."""
    left_out: dict[str, int]
    """Images of each class that the model does not know."""

    @property
    def labels(self) -> Ints:
        labels: Ints = self.split.labels[self.samples]
        return labels


@dataclass(frozen=True)
class Chosen(InOrder):
    """The arrangement that takes some samples of a split, in order."""

    samples: Ints

    def part(self, position: int, size: int, begin: int, end: int) -> tuple[Ints, Ints]:
        samples = self.samples[position + begin : position + end]
        return samples, np.zeros_like(samples)


def some(names: list[str]) -> str:
    """The first names of a list, for a message."""
    more = f" ... ({len(names):,} in all)" if len(names) > NAMES_SHOWN else ""
    return ", ".join(map(shown, names[:NAMES_SHOWN])) + more


def split_to_evaluate(dataset: Dataset, split: str, trained_on: object) -> str:
    """The split of this name; without one the split for evaluation, or all images of a set that has
    only one split and that the model was not trained on. `trained_on` is the fingerprint of the
    training set. Raises BadRequest where there is none."""
    names = [name for name in dataset.description["splits"] if dataset.images(name)]
    if split:
        if split not in names:
            known = ", ".join(names) or "no images"
            raise BadRequest(
                f"--split {shown(split)}: {dataset.name} has no images in it; it has {known}"
            )
        return split
    if dataset.eval_split:
        return dataset.eval_split
    if len(names) == 1 and dataset.fingerprint != trained_on:
        return str(names[0])
    raise BadRequest(
        f"{dataset.name} has no split to evaluate on (val or test), and the model was trained on "
        "it: --split train evaluates on the training images"
    )


def select(dataset: Dataset, name: str, classes: list[str]) -> Selection:
    """The images of a split whose classes the model knows. Raises BadRequest where there are
    none."""
    numbers = {known: number for number, known in enumerate(classes)}
    to_model = np.array([numbers.get(known, -1) for known in dataset.classes], dtype=np.int64)
    if (to_model < 0).all():
        raise BadRequest(nothing_in_common(dataset, classes))
    stored = dataset.split(name)
    split = copy.copy(stored)
    split.labels = to_model[stored.labels[:]]
    samples = np.flatnonzero(split.labels >= 0)
    counts = zip(dataset.classes, stored.rows.class_counts.tolist(), to_model, strict=True)
    left_out = {known: images for known, images, number in counts if images and number < 0}
    if not len(samples):
        raise BadRequest(
            f"{dataset.name} has no image in {name} of a class that the model knows: it has "
            f"{plural(len(stored), 'image')} of {some(list(left_out)) or 'no class'}"
        )
    return Selection(name, split, samples, left_out)


def nothing_in_common(dataset: Dataset, classes: list[str]) -> str:
    """Why a set cannot be evaluated, with both lists of classes."""
    splits = [name for name in dataset.classes if LIKE_A_SPLIT.fullmatch(name.lower())]
    hint = ": name one of these folders" if splits == dataset.classes else ""
    return (
        f"{dataset.name} and the model have no class in common: the set has "
        f"{some(dataset.classes)}{hint}; the model knows {some(classes)}"
    )


def storage_note(stored: dict[str, Any], training: dict[str, Any]) -> str | None:
    """A note where a set is stored otherwise than the training set was; None where it is not."""
    keys = ("codec", "max_side", "min_side")
    differences = [key for key in keys if stored.get(key) != training.get(key)]
    if not differences:
        return None
    here, there = (
        ", ".join(f"{key} {shown(str(facts.get(key)))}" for key in differences)
        for facts in (stored, training)
    )
    return (
        f"this set is stored with {here}, the training set with {there}: the figures may differ "
        "from those of a set that is stored alike"
    )
