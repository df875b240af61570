"""A run in counts: as many steps, images and evaluations as the run itself makes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samples import image_folder
from stoker.data.dataset import Dataset
from stoker.data.packing.pack import pack
from stoker.errors import BadRequest
from stoker.plan.workload import workload_of, workload_of_set
from stoker.recipe.recipe import Phase, Recipe
from stoker.recipe.schedule import Timeline

PHASES = (
    Phase(from_epoch=0, image_size=160, batch_size=128),
    Phase(from_epoch=2, image_size=224, batch_size=64),
)


@given(
    images=st.integers(300, 5000),
    epochs=st.integers(3, 20),
    every=st.integers(1, 25),
    in_phases=st.booleans(),
)
def test_counts_are_those_of_the_timeline(
    images: int, epochs: int, every: int, in_phases: bool
) -> None:
    recipe = Recipe(
        epochs=epochs, eval_every=every, batch_size=32, phases=PHASES if in_phases else ()
    )
    work = workload_of(recipe, images, 100, 10, parameters=1000)
    batches = list(Timeline.of(recipe, images).batches())
    assert work.steps == len(batches)
    assert work.trained_images == sum(batch.size for batch in batches)
    assert 0 <= images * epochs - work.trained_images < batches[-1].size
    # As the training loop decides it, after each batch.
    stride, evaluated, evaluations = every * images, 0, 0
    for batch in batches:
        if batch.end // stride > evaluated // stride or batch.end == batches[-1].end:
            evaluated, evaluations = batch.end, evaluations + 1
    assert work.evaluations == evaluations
    assert work.evaluated_images == 100 * evaluations


def test_bytes_of_weights() -> None:
    plain = workload_of(Recipe(batch_size=8), 100, 0, 10, parameters=1000)
    heavy = workload_of(Recipe(batch_size=8, ema=True), 100, 0, 10, parameters=1000)
    assert plain.gradient_bytes == 4000
    assert (plain.checkpoint_bytes, heavy.checkpoint_bytes) == (8000, 12000)
    assert (plain.evaluations, plain.evaluated_images) == (0, 0)


def test_stages_have_the_sizes_of_the_phases() -> None:
    work = workload_of(Recipe(epochs=4, phases=PHASES), 1280, 10, 10, parameters=1)
    sizes = [(stage.image_size, stage.batch_size, stage.steps) for stage in work.stages]
    assert sizes == [(160, 128, 20), (224, 64, 40)]
    assert work.evaluation_size == 224


def test_a_batch_above_the_run_is_refused() -> None:
    with pytest.raises(BadRequest, match="lower --batch-size"):
        workload_of(Recipe(epochs=1, batch_size=64), 10, 0, 2, parameters=1)


def test_of_a_packed_set(tmp_path: Path) -> None:
    pack(image_folder(tmp_path / "images", val=5), tmp_path / "set")
    dataset = Dataset(tmp_path / "set")
    work = workload_of_set(dataset, Recipe(epochs=2, batch_size=10), 500)
    assert (work.train_images, work.evaluation_images, work.classes) == (60, 15, 3)
    assert (work.steps, work.evaluations) == (12, 2)
    assert work.data_bytes == sum(path.stat().st_size for path in tmp_path.glob("set/*/*.tar"))
