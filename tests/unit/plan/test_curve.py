"""How many epochs a run that exists took to an accuracy."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from run_records import record
from stoker.errors import BadRequest
from stoker.plan.curve import epochs_to
from stoker.plan.workload import workload_of
from stoker.recipe.recipe import Phase, Recipe
from stoker.run.directory import Run

RECIPE = Recipe(model="resnet9_w16", epochs=10, batch_size=10, target=0.6)


def run_of(folder: Path, *shares: float, recipe: Recipe = RECIPE) -> Run:
    """A run with an evaluation of 100 images after each epoch."""
    run = Run(folder / "run")
    run.create(record(values=recipe.values()), "")
    place = run.events_path(1, 0)
    place.parent.mkdir(parents=True)
    events = [
        {
            "kind": "evaluation",
            "time": float(epoch),
            "step": 10 * epoch,
            "position": 100 * epoch,
            "epoch": float(epoch),
            "images": 100,
            "top1": round(100 * share),
            "top5": 100,
            "loss": 1.0,
            "seconds": 1.0,
        }
        for epoch, share in enumerate(shares, 1)
    ]
    place.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    return run


def test_the_first_evaluation_that_reaches_the_target_counts(tmp_path: Path) -> None:
    assert epochs_to(run_of(tmp_path, 0.2, 0.5, 0.6, 0.4, 0.7), RECIPE) == 3


def test_a_target_that_was_not_reached_is_refused_with_the_best(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"its best evaluation has 50\.00%"):
        epochs_to(run_of(tmp_path, 0.2, 0.5, 0.4), RECIPE)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "resnet18"},
        {"epochs": 20},
        {"image_size": 96},
        {"phases": (Phase(from_epoch=0, image_size=32, batch_size=10),)},
    ],
)
def test_the_curve_of_another_recipe_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    run = run_of(tmp_path, 0.9)
    with pytest.raises(BadRequest, match=f"is one of {next(iter(change))}"):
        epochs_to(run, replace(RECIPE, **change))  # type: ignore[arg-type]


def test_a_curve_needs_a_target(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="--curve needs --target"):
        epochs_to(run_of(tmp_path, 0.9), replace(RECIPE, target=0.0))


def test_the_work_ends_where_the_curve_did() -> None:
    whole = workload_of(RECIPE, 100, 50, 10, parameters=1)
    part = workload_of(RECIPE, 100, 50, 10, parameters=1, until=3.0)
    assert (whole.steps, whole.evaluations) == (100, 10)
    assert (part.steps, part.evaluations) == (30, 3)
