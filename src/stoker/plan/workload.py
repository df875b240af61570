"""What a run has to do, whatever machine it runs on.

Invariants: a pure value, made from a recipe and the numbers of images. Steps and stages are those
of the recipe's `Timeline`, so a plan and its run count alike. Bytes are those of 32-bit weights,
which the product keeps and exchanges in every precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stoker.recipe.recipe import Recipe
from stoker.recipe.schedule import Timeline

if TYPE_CHECKING:
    from stoker.data.dataset import Dataset
from stoker.data.index.shard_table import bytes_in

FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class WorkStage:
    """Steps of one image size and batch size."""

    image_size: int
    batch_size: int
    steps: int

    @property
    def images(self) -> int:
        return self.steps * self.batch_size


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A run in counts. `evaluation_images` is the number of each evaluation, at `evaluation_size`
    px."""

    model: str
    amp: str
    classes: int
    train_images: int
    epochs: int
    stages: tuple[WorkStage, ...]
    evaluations: int
    evaluation_images: int
    evaluation_size: int
    parameters: int
    gradient_bytes: int
    """Bytes that each GPU exchanges in a step of several GPUs."""
    checkpoint_bytes: int
    data_bytes: int
    """Bytes of the packed set; 0: not known."""

    @property
    def steps(self) -> int:
        return sum(stage.steps for stage in self.stages)

    @property
    def trained_images(self) -> int:
        """Images of all steps."""
        return sum(stage.images for stage in self.stages)

    @property
    def evaluated_images(self) -> int:
        """Images of all evaluations."""
        return self.evaluations * self.evaluation_images


def workload_of(
    recipe: Recipe,
    train_images: int,
    evaluation_images: int,
    classes: int,
    *,
    parameters: int,
    data_bytes: int = 0,
    until: float | None = None,
) -> Workload:
    """The workload of a recipe on so many images, to the end or until an epoch. Raises BadRequest
    for a batch that is larger than the run. A run that may end early (`target`, `patience`) counts
    with all of its epochs unless `until` says when."""
    # Imported here, so that a plan with a mistake is answered without waiting for torch.
    from stoker.train.trials.memory import checkpoint_bytes

    timeline = Timeline.of(recipe, train_images)
    end = timeline.end if until is None else timeline.batch_start_from(until)
    stages = tuple(
        WorkStage(
            image_size=each.image_size,
            batch_size=each.batch_size,
            steps=(min(each.end_position, end) - each.first_position) // each.batch_size,
        )
        for each in timeline.stretches
        if each.first_position < end
    )
    return Workload(
        model=recipe.model,
        amp=recipe.amp,
        classes=classes,
        train_images=train_images,
        epochs=recipe.epochs,
        stages=stages,
        evaluations=evaluations_of(recipe, timeline, end) if evaluation_images else 0,
        evaluation_images=evaluation_images,
        evaluation_size=timeline.stretches[-1].image_size,
        parameters=parameters,
        gradient_bytes=FLOAT_BYTES * parameters,
        checkpoint_bytes=checkpoint_bytes(recipe, parameters),
        data_bytes=data_bytes,
    )


def evaluations_of(recipe: Recipe, timeline: Timeline, end: int) -> int:
    """The number of evaluations: after the batch that ends every `eval_every`-th epoch, and at the
    end."""
    epochs = range(recipe.eval_every, recipe.epochs + 1, recipe.eval_every)
    places = {end, *(timeline.batch_start_from(epoch) for epoch in epochs)}
    return sum(place <= end for place in places)


def workload_of_set(
    dataset: Dataset, recipe: Recipe, parameters: int, until: float | None = None
) -> Workload:
    """The workload of a recipe on a packed set. Raises BadRequest as `workload_of` does."""
    splits = dataset.description["splits"]
    return workload_of(
        recipe,
        dataset.images("train"),
        dataset.images(dataset.eval_split) if dataset.eval_split else 0,
        len(dataset.classes),
        parameters=parameters,
        data_bytes=sum(map(bytes_in, splits.values())),
        until=until,
    )
