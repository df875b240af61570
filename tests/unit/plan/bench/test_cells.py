"""The matrix of a benchmark, and mistakes in its lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import BadRequest
from stoker.plan.bench.cells import (
    MOST_CELLS,
    Axes,
    BenchCell,
    comma_list,
    matrix,
    model_name,
    precision_name,
    whole_number,
)
from stoker.recipe.recipe import Phase, Recipe


def test_the_batch_size_changes_fastest() -> None:
    cells = matrix(Axes(["a", "b"], [32], [16, 32], ["fp32", "bf16"], [1, 2]))
    assert len(cells) == len(set(cells)) == 16
    assert cells[0] == BenchCell("a", 32, 16, "fp32", 1)
    assert cells[1] == BenchCell("a", 32, 32, "fp32", 1)
    assert cells[2] == BenchCell("a", 32, 16, "fp32", 2)
    assert cells[8].model == "b"


def test_too_many_cells_are_refused() -> None:
    axes = Axes(["a"], [32], list(range(1, MOST_CELLS + 2)), ["fp32"], [1])
    with pytest.raises(BadRequest, match="501 cells"):
        matrix(axes)


def test_more_ranks_than_images_are_refused() -> None:
    with pytest.raises(BadRequest, match="fewer images than --ranks 4"):
        matrix(Axes(["a"], [32], [8, 2], ["fp32"], [1, 4]))


def test_a_cell_sets_the_sizes_and_the_precision_of_its_recipe() -> None:
    base = Recipe(phases=(Phase(from_epoch=0, image_size=8, batch_size=8),), lr=0.3)
    recipe = BenchCell("resnet9", 24, 12, "fp32", 2).recipe(base)
    assert (recipe.image_size, recipe.batch_size, recipe.amp) == (24, 12, "off")
    assert (recipe.phases, recipe.lr) == ((), 0.3)


@given(st.lists(st.integers(1, 1 << 20), min_size=1, max_size=9, unique=True))
def test_a_comma_list_gives_its_numbers_back(numbers: list[int]) -> None:
    text = " , ".join(map(str, numbers))
    assert comma_list("--ranks", text, whole_number) == numbers


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "1,,2", "2,2", "x", "٣", "9" * 30, "1 2"])
def test_other_numbers_are_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="--ranks"):
        comma_list("--ranks", text, whole_number)


def test_names_are_checked_as_far_as_they_can_be() -> None:
    assert comma_list("--model", "a,./b.py:build", model_name) == ["a", "./b.py:build"]
    assert comma_list("--precision", "fp32,bf16", precision_name) == ["fp32", "bf16"]
    with pytest.raises(BadRequest, match="fp32, tf32, bf16, fp16, not 'fp64'"):
        comma_list("--precision", "fp64", precision_name)
