"""How many epochs a run needs to an accuracy, from a run that reached it.

Invariant: a curve holds for its own model, image sizes and length of schedule; for others it is
refused. What else differs, such as the batch, is the user's to judge.
"""

from __future__ import annotations

from stoker.errors import BadRequest
from stoker.recipe.recipe import Recipe
from stoker.run.directory import Run
from stoker.text import shown

SAME = ("model", "epochs", "image_size", "phases")
"""Keys of a recipe without which the same accuracy comes at another epoch."""


def epochs_to(run: Run, recipe: Recipe) -> float:
    """The epoch of the first evaluation at which a run reached the recipe's target. Raises
    BadRequest for a run of another recipe, and for one that did not reach it."""
    name = shown(str(run.path))
    if not recipe.target:
        raise BadRequest("--curve needs --target, such as 0.9: the accuracy to plan for")
    planned = recipe.values()
    for key in SAME:
        if run.values.get(key) != planned[key]:
            raise BadRequest(
                f"the curve of {name} is one of {key} {shown(str(run.values.get(key)))}, not "
                f"{shown(str(planned[key]))}: it does not tell when this run reaches the target"
            )
    evaluations = run.merged("evaluation")
    for event in evaluations:
        if event["top1"] >= recipe.target * event["images"]:
            return float(event["epoch"])
    best = max((event["top1"] / event["images"] for event in evaluations), default=0.0)
    raise BadRequest(
        f"{name} does not reach --target {recipe.target:g}: its best evaluation has {best:.2%}"
    )
