"""A note before step 1 where images are stored smaller than the model's input."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from golden import check_golden
from stoker.data.loading.stored_size import check_sizes, enlarged_note
from stoker.errors import BadRequest
from stoker.recipe.recipe import Phase, Recipe

DEFAULT = {"codec": "jpeg", "max_side": 500, "min_side": 0}
Sizes = list[tuple[int, int]]


def note(sizes: Sizes, image_size: int, codec: str = "jpeg", **storage: int) -> str | None:
    columns = (
        np.array([width for width, _ in sizes], np.int32),
        np.array([height for _, height in sizes], np.int32),
    )
    rows = SimpleNamespace(some_sizes=lambda: columns)
    split: Any = SimpleNamespace(rows=rows, codec=codec, name="train")
    return enlarged_note(split, DEFAULT | storage, image_size)


@pytest.mark.parametrize(
    ("sizes", "image_size", "expected"),
    [
        ([(500, 375)] * 4, 375, False),
        ([(500, 375)] * 4, 376, True),
        ([(375, 500)] * 4, 376, True),
        ([(32, 32)] * 4, 32, False),
        ([(32, 32)] * 4, 33, True),
        ([(40, 40), (20, 20)], 30, False),
        ([(40, 40), (20, 20), (20, 20)], 30, True),
        ([], 64, False),
    ],
)
def test_more_than_half_of_the_images(sizes: Sizes, image_size: int, expected: bool) -> None:
    assert (note(sizes, image_size) is not None) == expected


def test_notes_golden() -> None:
    notes = {
        "shrunk": note([(500, 375)] * 4, 448),
        "shrunk by the shorter side": note([(400, 256)] * 4, 448, min_side=256),
        "small sources": note([(48, 40)] * 4, 64),
        "not limited": note([(48, 40)] * 4, 64, max_side=0),
        "raw": note([(64, 64)] * 4, 96, "raw", max_side=64),
        "original": note([(500, 375)] * 4, 448, "original"),
    }
    check_golden("loading_stored_size", [f"{name}: {text}" for name, text in notes.items()])


PHASES = (
    Phase(from_epoch=0, image_size=16, batch_size=100),
    Phase(from_epoch=1, image_size=2000, batch_size=8),
)


@pytest.mark.parametrize(
    ("recipe", "sizes", "told"),
    [
        (Recipe(batch_size=5, image_size=64), [(64, 64)] * 5, ""),
        (
            Recipe(batch_size=6, image_size=64),
            [(64, 64)] * 5,
            "a batch of 6 images is more than the training set, which has 5 images: lower "
            "--batch-size",
        ),
        (Recipe(batch_size=2, image_size=1024), [(64, 90)] * 5, ""),
        (
            Recipe(batch_size=2, image_size=3000),
            [(90, 64)] * 5,
            "image_size = 3,000 enlarges the images 47 times: their shorter side has 64 px "
            "(median), and 16 times is the most: lower --image-size",
        ),
        (Recipe(batch_size=2, image_size=17), [(1, 0)] * 5, "enlarges the images 17 times"),
        (Recipe(epochs=2, phases=PHASES), [(64, 64)] * 99, "a batch of 100 images"),
        (Recipe(epochs=2, phases=PHASES), [(64, 64)] * 100, "image_size = 2,000 enlarges"),
        (Recipe(epochs=2, phases=PHASES), [(500, 375)] * 100, ""),
        (Recipe(batch_size=1), [], "which has 0 images"),
    ],
)
def test_sizes_that_a_set_does_not_have(recipe: Recipe, sizes: Sizes, told: str) -> None:
    columns = np.array(sizes, np.int32).reshape(-1, 2).T
    split: Any = Split([0] * len(sizes))
    split.rows = SimpleNamespace(some_sizes=lambda: (columns[0], columns[1]))
    if not told:
        check_sizes(recipe, split)
    else:
        with pytest.raises(BadRequest) as refused:
            check_sizes(recipe, split)
        assert told in str(refused.value)


class Split(list[int]):
    """As many samples as it has items."""

    rows: Any = None
