"""A run as a plan sees it: its workload, its operations, and how fast a core loads its images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stoker.data.dataset import Dataset
from stoker.errors import BadRequest
from stoker.plan.estimate import START_S
from stoker.plan.gpu.operations import count_operations
from stoker.plan.machines import PlannedRun, RentalTerms
from stoker.plan.probe import measure_probe, read_probe
from stoker.plan.ranges import FigureRange
from stoker.plan.workload import Workload, workload_of_set
from stoker.price.offers import Offer
from stoker.price.table import age_days
from stoker.recipe.recipe import Recipe
from stoker.text import shown
from stoker.train.trials.memory import parameters

DISK_BYTES_PER_S = FigureRange(125e6, 400e6, 2e9)
"""What the disk of a rented machine takes: the baseline of AWS's gp3 volumes at least
(docs.aws.amazon.com, EBS volume types, 2026), a local disk at most."""
BLOCKED_SHARE = 0.2
"""The part of a save that stops training: the copy; writing goes on beside the steps. Measured as
less (docs/results/surviving.md); a plan is careful."""
PRECISIONS = {"off": "fp32", "tf32": "tf32", "bf16": "bf16", "fp16": "fp16"}


def planned_run(path: Path, recipe: Recipe, probe_file: Path | None) -> PlannedRun:
    """The run of a recipe on a packed set. Raises BadRequest for a folder that is not packed, and
    for a model that cannot be counted."""
    if not Dataset.is_packed(path):
        raise BadRequest(f"{shown(str(path))} is not packed: run stoker pack {shown(str(path))}")
    dataset = Dataset(path)
    classes = len(dataset.classes)
    work = workload_of_set(dataset, recipe, parameters(recipe, classes))
    sizes = {stage.image_size for stage in work.stages}
    probe = read_probe(probe_file, sizes) if probe_file else measure_probe(dataset, recipe, sizes)
    return PlannedRun(
        work=work,
        counts={size: count_operations(recipe.model, size, classes) for size in sizes},
        precision=PRECISIONS[recipe.amp],
        channels_last=recipe.channels_last,
        micro_batch=recipe.micro_batch,
        probe=probe,
    )


def rental_terms(
    recipe: Recipe, work: Workload, offers: Sequence[Offer], hours_between: float | None, day: str
) -> RentalTerms:
    """How the machines are rented, where nothing better is known."""
    newest = max(offer.date for offer in offers)
    save_s = DISK_BYTES_PER_S.time_of(work.checkpoint_bytes) * BLOCKED_SHARE
    return RentalTerms(
        hours_between=hours_between or recipe.interruption_hours,
        start_s=START_S,
        save_s=save_s,
        days_ahead=0.0 if day else max(age_days(newest), 0),
        checkpoint_interval=recipe.checkpoint_interval,
    )
