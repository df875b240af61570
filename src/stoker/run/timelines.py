"""The timelines that a run has followed, from its record: which positions it can have been at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stoker.errors import StokerError
from stoker.recipe.recipe import Phase, Recipe
from stoker.recipe.schedule import Timeline
from stoker.run.directory import Run


def wrong_position(run: Run, facts: Mapping[str, Any], samples: int) -> str:
    """Why a checkpoint with these facts cannot be one of a run over so many samples; empty where it
    can, or where the record of the run does not tell."""
    position, step = facts["position"], facts["step"]
    timelines = list(recorded_timelines(run, samples))
    if timelines and not any(timeline.has(position, step) for timeline in timelines):
        return f"this run has no step {step:,} at sample {position:,}"
    if facts.get("evaluated", 0) > position:
        return f"this run has no step {step:,} evaluated at sample {facts['evaluated']:,}"
    return ""


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
