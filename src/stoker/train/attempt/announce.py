"""What a run writes down about itself: what it trains, how an attempt begins, how to use it."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from stoker.data.dataset import Dataset
from stoker.measure.machine import environment, seconds_since_start
from stoker.recipe.changes import CONSENT, HARMLESS, Change
from stoker.recipe.recipe import Recipe
from stoker.recipe.resolve import Resolved
from stoker.recipe.schedule import Timeline
from stoker.recipe.summary import derived_line, warnings
from stoker.run.directory import FORMAT, Run
from stoker.survive.rehearsal import RehearsalResult
from stoker.survive.spot import PROVIDERS, provider_here
from stoker.train.attempt.loop import Loop
from stoker.train.attempt.lost_peers import rank_and_host
from stoker.train.model.build import Normalise
from stoker.train.process_group import Ranks

AGREED = {HARMLESS: "", CONSENT: ", as agreed, from here on"}


def record_of(resolved: Resolved, dataset: Dataset, lanes: int) -> dict[str, Any]:
    """What run.json says: enough to go on with the run on another machine."""
    return {
        "format": FORMAT,
        "recipe": resolved.name,
        "digest": resolved.recipe.digest(),
        "values": resolved.recipe.values(),
        "data": str(Path(dataset.path).resolve()),
        "fingerprint": dataset.fingerprint,
        "classes": dataset.classes,
        "lanes": lanes,
        "created": time.time(),
        "changes": [],
    }


def announce(
    loop: Loop,
    run: Run,
    torn: list[str],
    changed: list[Change],
    rehearsed: RehearsalResult | None,
    began_s: float,
    feeding: list[str],
    link: tuple[float, float] | None,
) -> None:
    """The event that begins an attempt: where it starts, what follows from the recipe here."""
    recipe, timeline, ranks, state = loop.step.recipe, loop.timeline, loop.ranks, loop.state
    derived = derived_line(recipe, timeline, ranks.world, loop.step.micro_batch)
    notes = [
        *warnings(recipe, timeline),
        *idle_gpus(ranks),
        *split_otherwise(run, derived),
        *lost_ranks(run),
        *(f"changed: {change}{AGREED[change.kind]}" for change in changed),
        *(remedy.text() for remedy in loop.step.remedies.taken),
        *slow_to_save(recipe, rehearsed),
        *feeding,
    ]
    loop.events.write(
        "attempt",
        position=state.position,
        step=state.step,
        rank=ranks.rank,
        world=ranks.world,
        local_world=ranks.local_world,
        capacity=link[0] if link else None,
        send_cpu=link[1] if link else None,
        loading_threads=loop.loader.threads,
        best=state.best,
        torn=torn,
        steps=timeline.steps,
        samples=timeline.samples,
        classes=len(loop.saves.facts["classes"]),
        epochs=timeline.epochs,
        unseen=timeline.unseen,
        derived=derived,
        warnings=notes,
        startup_s=round(seconds_since_start() - began_s, 3),
        environment=environment(ranks.device),
    )
    loop.events.flush()


def usage_facts(
    dataset: Dataset, recipe: Recipe, timeline: Timeline, normalise: Normalise
) -> dict[str, Any]:
    """What anyone needs to use the weights: classes, and how an image becomes an input."""
    return {
        "model": recipe.model,
        "classes": dataset.classes,
        "fingerprint": dataset.fingerprint,
        "recipe_digest": recipe.digest(),
        "input": {
            "image_size": timeline.stretches[-1].image_size,
            "crop_pct": recipe.crop_pct,
            "filter": "bilinear after power-of-two JPEG scaling",
            **asdict(normalise),
        },
    }


def split_otherwise(run: Run, derived: str) -> list[str]:
    """A word where the attempt before split its batches in another way."""
    before = [start["derived"] for start in run.starts()]
    now, then = (line.split(";")[0] for line in (derived, before[-1] if before else derived))
    if now == then or now.split(" =")[0] != then.split(" =")[0]:
        return []
    return [f"{then} before: the batches are the same, BatchNorm sees other groups of them"]


def lost_ranks(run: Run) -> list[str]:
    """Ranks of the attempt before that left without a word, where others did not."""
    attempts = [a for a in run.attempts() if run.start_of(a) is not None]
    if not attempts:
        return []
    events = {
        rank: list(run.attempt_events(attempts[-1], rank)) for rank in run.ranks(attempts[-1])
    }
    silent = [rank for rank, said in events.items() if said and said[-1]["kind"] != "end"]
    if not silent or len(silent) == len(events):
        return []
    names = [rank_and_host(rank, events[rank]) for rank in silent]
    return [f"lost in the attempt before: {', '.join(names)}"]


def idle_gpus(ranks: Ranks) -> list[str]:
    """A word about GPUs that nobody uses."""
    present = torch.cuda.device_count()
    if present <= ranks.local_world:
        return []
    return [f"{present} GPUs here, {ranks.local_world} used: --ranks {present} uses all"]


def slow_to_save(recipe: Recipe, rehearsed: RehearsalResult | None) -> list[str]:
    """A word where a save hardly fits between a stop signal and the end of the machine."""
    provider = provider_here(recipe.spot_notice)
    grace = min(recipe.grace, PROVIDERS[provider].warning_s if provider else recipe.grace)
    if rehearsed is None or rehearsed.seconds <= grace / 2:
        return []
    return [
        f"a save takes {rehearsed.seconds:.0f} s, and only {grace:.0f} s lie between a stop signal "
        "and the end of the machine: a faster disk for --run, or a longer --grace"
    ]
