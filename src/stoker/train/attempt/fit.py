"""Whether a checkpoint can be one of this run: its model, its optimiser and its position.

Invariant: a checkpoint that this run wrote fits, whatever recipes the run had and has.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from stoker.errors import StokerError
from stoker.recipe.recipe import Phase, Recipe
from stoker.recipe.schedule import Timeline
from stoker.run.directory import Run
from stoker.survive.checkpoint import Snapshot
from stoker.survive.checkpoints import Checkpoints
from stoker.train import state
from stoker.train.loaders import Prepared


def checkpoints_of(run: Run, prepared: Prepared) -> Checkpoints:
    """The checkpoints of a run; those of another model or position are passed over."""
    keep = prepared.recipe.keep_checkpoints
    fits = partial(misfit, run, prepared)
    return Checkpoints(run.path, keep, misfit=fits, check_place=run.require_place)


def misfit(run: Run, prepared: Prepared, snapshot: Snapshot) -> str:
    """Why a checkpoint cannot be one of this run; empty where it can."""
    if reason := state.misfit(prepared.recipe, prepared.model, snapshot):
        return f"{run.path / 'checkpoints' / snapshot.name}: {reason}"
    facts, samples = snapshot.facts, len(prepared.split)
    timelines = list(recorded_timelines(run, samples))
    position, step = facts["position"], facts["step"]
    known = any(timeline.has(position, step) for timeline in timelines) or not timelines
    if known and {"evaluated", "best"} <= facts.keys() and facts["evaluated"] <= position:
        return ""
    return (
        f"{run.path / 'checkpoints' / snapshot.name}: this run has no step {step} at sample "
        f"{position:,}"
    )


def recorded_timelines(run: Run, samples: int) -> Iterator[Timeline]:
    """The timeline of each recipe that the run has had; none where they cannot be read."""
    try:
        record = run.record
        starts = [(0, 0), *((change["position"], change["step"]) for change in record["changes"])]
        for entry, start in zip([record, *record["changes"]], starts, strict=True):
            values = entry["values"]
            recipe = Recipe(
                epochs=values["epochs"],
                batch_size=values["batch_size"],
                image_size=values["image_size"],
                warmup_epochs=0,
                phases=tuple(Phase(**phase) for phase in values.get("phases", ())),
            )
            yield Timeline.of(recipe, samples, *start)
    except (StokerError, LookupError, TypeError, AttributeError):
        return
