"""The matrix of a benchmark: every combination of some models, sizes, precisions and ranks.

Invariants: no cell comes twice. The order is that of the lists, with the batch size changing
fastest, so that rows to be compared are measured one after the other. A batch size counts the
images of all ranks, as everywhere in Stoker. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, TypeVar

from stoker.errors import BadRequest
from stoker.recipe.recipe import Recipe
from stoker.text import printable

AMP = {"fp32": "off", "tf32": "tf32", "bf16": "bf16", "fp16": "fp16"}
"""The precisions by the names of a table, each with the recipe's name."""
MOST_CELLS = 500
MOST_NUMBER = 1 << 20
"""A larger batch, image or number of ranks is a mistake."""
Value = TypeVar("Value")


@dataclass(frozen=True, order=True)
class BenchCell:
    """One combination."""

    model: str
    image_size: int
    batch_size: int
    """Images of a step, over all ranks."""
    precision: str
    """A key of AMP."""
    ranks: int

    def label(self) -> str:
        """The cell in words, such as `resnet18 224 px batch 64 bf16, 2 ranks`."""
        name = printable(self.model)
        ranks = "1 rank" if self.ranks == 1 else f"{self.ranks} ranks"
        return f"{name} {self.image_size} px batch {self.batch_size} {self.precision}, {ranks}"

    def as_data(self) -> dict[str, Any]:
        return asdict(self)

    def recipe(self, base: Recipe) -> Recipe:
        """The base recipe of this cell's model, with this cell's sizes and precision."""
        return replace(
            base,
            phases=(),
            image_size=self.image_size,
            batch_size=self.batch_size,
            amp=AMP[self.precision],
        )


@dataclass(frozen=True)
class Axes:
    """The lists that a matrix is made of."""

    models: Sequence[str]
    image_sizes: Sequence[int]
    batch_sizes: Sequence[int]
    precisions: Sequence[str]
    ranks: Sequence[int]


def matrix(axes: Axes) -> list[BenchCell]:
    """Every combination. Raises BadRequest where there are too many, or a batch has fewer images
    than ranks."""
    count = (
        len(axes.models)
        * len(axes.image_sizes)
        * len(axes.precisions)
        * len(axes.ranks)
        * len(axes.batch_sizes)
    )
    if count > MOST_CELLS:
        raise BadRequest(
            f"these lists make {count:,} cells, and a benchmark has at most {MOST_CELLS}: "
            "shorten a list, or measure in several files"
        )
    cells = [
        BenchCell(model, size, batch, precision, ranks)
        for model, size, precision, ranks, batch in product(
            axes.models, axes.image_sizes, axes.precisions, axes.ranks, axes.batch_sizes
        )
    ]
    for cell in cells:
        if cell.batch_size < cell.ranks:
            raise BadRequest(
                f"--batch-size {cell.batch_size} has fewer images than --ranks {cell.ranks}: "
                "raise the batch size, or lower the ranks"
            )
    return cells


def comma_list(flag: str, text: str, convert: Callable[[str, str], Value]) -> list[Value]:
    """The values of a comma list, in order. Raises BadRequest for an empty or repeated value."""
    values: list[Value] = []
    for word in (part.strip() for part in text.split(",")):
        if not word:
            raise BadRequest(f"{flag} '{printable(text)}' has an empty value: write A,B,C")
        value = convert(flag, word)
        if value in values:
            raise BadRequest(f"{flag} names {printable(word)} twice: drop one")
        values.append(value)
    return values


def whole_number(flag: str, word: str) -> int:
    """A number from 1 on. Raises BadRequest for anything else."""
    if not (word.isascii() and word.isdecimal() and 1 <= int(word[:9]) <= MOST_NUMBER):
        raise BadRequest(
            f"{flag} must be whole numbers from 1 to {MOST_NUMBER:,}, not '{printable(word)}'"
        )
    return int(word)


def precision_name(flag: str, word: str) -> str:
    """A precision. Raises BadRequest for anything else."""
    if word not in AMP:
        raise BadRequest(f"{flag} must be of {', '.join(AMP)}, not '{printable(word)}'")
    return word


def model_name(flag: str, word: str) -> str:
    """Any word: whether there is such a model is checked with its recipe."""
    return word
