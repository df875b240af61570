"""Which cells are measured for a plan on this machine."""

from __future__ import annotations

from stoker.plan.measured.here import MOST_IMAGES, cells_of
from stoker.plan.workload import workload_of
from stoker.recipe.recipe import Phase, Recipe

PHASES = (
    Phase(from_epoch=0, image_size=32, batch_size=256),
    Phase(from_epoch=1, image_size=32, batch_size=128),
    Phase(from_epoch=2, image_size=64, batch_size=16),
)


def test_each_shape_is_measured_once() -> None:
    work = workload_of(Recipe(epochs=4, phases=PHASES), 1280, 10, 10, parameters=1)
    shapes = [(cell.image_size, cell.batch_size, cell.ranks) for cell in cells_of(work, 0)]
    assert shapes == [(32, MOST_IMAGES, 1), (64, 16, 1)]


def test_gpus_are_measured_together_with_whole_batches() -> None:
    work = workload_of(Recipe(epochs=4, phases=PHASES), 1280, 10, 10, parameters=1)
    shapes = [(cell.image_size, cell.batch_size, cell.ranks) for cell in cells_of(work, 8)]
    assert shapes == [(32, 128, 8), (32, 256, 8), (64, 16, 8)]
