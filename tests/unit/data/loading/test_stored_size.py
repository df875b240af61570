"""A note before step 1 where images are stored smaller than the model's input."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from golden import check_golden
from stoker.data.loading.stored_size import enlarged_note

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
