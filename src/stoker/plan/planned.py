"""A run as a plan sees it: its workload, its operations, and how fast a core loads its images."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from stoker.data.dataset import Dataset
from stoker.plan.curve import epochs_to
from stoker.plan.estimate import START_S
from stoker.plan.gpu.operations import count_operations
from stoker.plan.machines import PlannedRun, RentalTerms
from stoker.plan.probe import LoadingProbe, measure_probe, read_probe
from stoker.plan.ranges import FigureRange
from stoker.plan.workload import Workload, workload_of_set
from stoker.price.table import today
from stoker.recipe.recipe import Recipe
from stoker.run.directory import Run
from stoker.train.trials.memory import parameters

DISK_BYTES_PER_S = FigureRange(125e6, 400e6, 2e9)
"""What the disk of a rented machine takes: the baseline of AWS's gp3 volumes at least
(docs.aws.amazon.com, EBS volume types, 2026), a local disk at most."""
BLOCKED_SHARE = 0.2
"""The part of a save that stops training: the copy; writing goes on beside the steps. Measured as
less (docs/results/surviving.md); a plan is careful."""
PRECISIONS = {"off": "fp32", "tf32": "tf32", "bf16": "bf16", "fp16": "fp16"}


def planned_work(path: Path, recipe: Recipe, curve: Path | None = None) -> tuple[Dataset, Workload]:
    """A packed set, and what a recipe does with it: all of its epochs, or those that the run
    `curve` took to the recipe's target."""
    dataset = Dataset(path)
    until = epochs_to(Run(curve), recipe) if curve else None
    return dataset, workload_of_set(
        dataset, recipe, parameters(recipe, len(dataset.classes)), until
    )


def planned_run(work: Workload, recipe: Recipe, probe: LoadingProbe | None) -> PlannedRun:
    """The run of a recipe. Without a probe nothing is counted: for a machine on which the run
    itself is measured. Raises BadRequest for a model that cannot be counted."""
    sizes = {stage.image_size for stage in work.stages} if probe else ()
    return PlannedRun(
        work=work,
        counts={size: count_operations(recipe.model, size, work.classes) for size in sizes},
        precision=PRECISIONS[recipe.amp],
        channels_last=recipe.channels_last,
        micro_batch=recipe.micro_batch,
        probe=probe or LoadingProbe({}, ""),
    )


def loading_probe(
    dataset: Dataset, recipe: Recipe, work: Workload, file: Path | None
) -> LoadingProbe:
    """How fast a core loads the images: from a file of doctor, else measured."""
    sizes = {stage.image_size for stage in work.stages}
    return read_probe(file, sizes) if file else measure_probe(dataset, recipe, sizes)


def rental_terms(
    recipe: Recipe, work: Workload, hours_between: float | None = None, day: date | None = None
) -> RentalTerms:
    """How the machines are rented, where nothing better is known: today, or on a day."""
    save_s = DISK_BYTES_PER_S.time_of(work.checkpoint_bytes) * BLOCKED_SHARE
    return RentalTerms(
        hours_between=hours_between or recipe.interruption_hours,
        start_s=START_S,
        save_s=save_s,
        begins=day or today(),
        checkpoint_interval=recipe.checkpoint_interval,
    )
