"""What a run records at its start: the run itself, each attempt, and how to use its weights."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from typing import Any

import torch

from stoker import faults
from stoker.host.counters import seconds_since_start
from stoker.host.gpu import gpus_at_hand
from stoker.measure.environment import attempt_environment
from stoker.recipe.changes import CONSENT, HARMLESS
from stoker.recipe.recipe import Recipe
from stoker.recipe.resolve import Resolved
from stoker.recipe.summary import derived_line, warnings
from stoker.run.directory import FORMAT, Run
from stoker.survive.rehearsal import RehearsalResult
from stoker.survive.spot import PROVIDERS, provider_here
from stoker.text import plural, shown
from stoker.train.attempt.bits import bits_note
from stoker.train.attempt.inputs import AttemptInputs
from stoker.train.attempt.loop import Loop
from stoker.train.attempt.lost_peers import rank_and_host
from stoker.train.device import DETERMINISTIC_WORKSPACES, WORKSPACE
from stoker.train.loaders import Prepared
from stoker.train.process_group import Ranks
from stoker.train.records.trace import profile_note

ALLOWED = {HARMLESS: "", CONSENT: ", as allowed, from here on"}


def record_of(resolved: Resolved, prepared: Prepared) -> dict[str, Any]:
    """The content of run.json: enough to continue the run on another machine."""
    dataset, start = prepared.dataset, prepared.start
    return {
        "format": FORMAT,
        "recipe": resolved.name,
        "digest": resolved.recipe.digest(),
        "values": resolved.recipe.values(),
        "data": dataset.place,
        "fingerprint": dataset.fingerprint,
        "classes": dataset.classes,
        "lanes": prepared.lanes,
        "created": time.time(),
        "changes": [],
        **({"start": start.record()} if start else {}),
    }


def announce(
    loop: Loop,
    inputs: AttemptInputs,
    rehearsal: RehearsalResult | None,
    link: tuple[float, float] | None,
) -> None:
    """Write the `attempt` event: where the attempt starts, and what follows from the recipe on this
    machine. `link`: bytes a second between machines, and CPU seconds for each byte."""
    timeline, ranks, state = loop.timeline, loop.ranks, loop.state
    events, start = loop.records.events, inputs.prepared.start
    place = {"world": ranks.world, "environment": attempt_environment(ranks.device)}
    derived = derived_of(loop)
    events.write(
        "attempt",
        position=state.position,
        step=state.step,
        rank=ranks.rank,
        local_world=ranks.local_world,
        capacity=link[0] if link else None,
        send_cpu=link[1] if link else None,
        loading_threads=loop.loaders.loader.threads,
        **store_facts(inputs),
        best=state.best,
        torn=inputs.torn,
        torn_reasons=inputs.checkpoints.reasons,
        steps=timeline.steps,
        samples=timeline.samples,
        classes=len(inputs.prepared.dataset.classes),
        epochs=timeline.epochs,
        unseen=timeline.unseen,
        derived=derived,
        warnings=notes_of(loop, inputs, place, derived, rehearsal),
        startup_s=round(seconds_since_start() - inputs.began_s, 3),
        **({"weights": start.line} if start else {}),
        **({"masks": state.masking.facts()} if state.masking else {}),
        local_rank=ranks.local_rank,
        **inputs.money.facts(inputs.began_s),
        **place,
    )
    if words := faults.note():
        events.write("faults", words=words)
    events.flush()


def store_facts(inputs: AttemptInputs) -> dict[str, Any]:
    """The location of a set that is not on this machine, and the mean bytes of its images; nothing
    for a set in a folder."""
    dataset, split = inputs.prepared.dataset, inputs.prepared.split
    if dataset.store is None:
        return {}
    return {"store": dataset.name, "image_bytes": round(split.rows.mean_bytes, 1)}


def notes_of(
    loop: Loop,
    inputs: AttemptInputs,
    place: dict[str, Any],
    derived: str,
    rehearsal: RehearsalResult | None,
) -> list[str]:
    """What the user should know before the first step, a sentence for each."""
    recipe, timeline, run = loop.step.recipe, loop.timeline, inputs.run
    return [
        *warnings(recipe, timeline),
        *idle_gpus(loop.ranks),
        *split_note(run, derived),
        *bits_notes(loop, inputs, place),
        *lost_ranks(run),
        *run.damage.notes(run.path),  # of the events that were read above
        *(f"changed: {change}{ALLOWED[change.kind]}" for change in inputs.changes),
        *(remedy.text() for remedy in loop.step.remedies.taken),
        *slow_to_save(recipe, rehearsal),
        *inputs.prepared.fit.notes,
        *profile_note(inputs.options.profile, loop.state.step, timeline.steps),
    ]


def derived_of(loop: Loop) -> str:
    """What follows from the recipe on this machine, and what is frozen now, in one line."""
    step = loop.step
    derived = derived_line(step.recipe, loop.timeline, loop.ranks.world, step.micro_batch)
    return f"{derived}; {step.freeze.text()}" if step.is_frozen else derived


def usage_facts(prepared: Prepared) -> dict[str, Any]:
    """What a user of the weights needs: the classes, and how an image becomes an input."""
    dataset, recipe = prepared.dataset, prepared.recipe
    return {
        "model": recipe.model,
        "classes": dataset.classes,
        "fingerprint": dataset.fingerprint,
        "recipe_digest": recipe.digest(),
        "storage": dataset.description["storage"],
        "input": {
            "image_size": prepared.timeline.stretches[-1].image_size,
            "crop_pct": recipe.crop_pct,
            "filter": "bilinear after power-of-two JPEG scaling",
            **asdict(prepared.normalise),
        },
    }


def split_note(run: Run, derived: str) -> list[str]:
    """A note if the last attempt divided the same batches differently."""
    starts = run.starts()
    last = starts[-1]["derived"] if starts else derived
    now, before = (line.split(";")[0] for line in (derived, last))
    if now == before or now.split(" =")[0] != before.split(" =")[0]:
        return []
    return [f"before: {before}; the batches are the same, but BatchNorm sees other groups of them"]


def lost_ranks(run: Run) -> list[str]:
    """A note about ranks of the last attempt that left no `end` event while others did."""
    last = max((a for a in run.attempts() if run.start_of(a) is not None), default=None)
    if last is None:
        return []
    events = {rank: list(run.attempt_rows(last, rank)) for rank in run.ranks(last)}
    silent = [rank for rank, lines in events.items() if lines and lines[-1]["kind"] != "end"]
    if not silent or len(silent) == len(events):
        return []
    names = [rank_and_host(rank, events[rank]) for rank in silent]
    return [f"lost in the last attempt: {', '.join(names)}"]


def idle_gpus(ranks: Ranks) -> list[str]:
    """A note about GPUs that are not used."""
    if torch.version.cuda is None and ranks.device.type == "cpu" and (gpus := gpus_at_hand()):
        return [
            f"PyTorch {torch.__version__} has no CUDA, so {plural(gpus, 'GPU')} of this machine "
            "stays unused: install a PyTorch with CUDA to train on it"
        ]
    present = torch.cuda.device_count()
    if present <= ranks.local_world:
        return []
    return [f"{ranks.local_world} of {present} GPUs are used: --ranks {present} uses all"]


def bits_notes(loop: Loop, inputs: AttemptInputs, place: dict[str, Any]) -> list[str]:
    """Notes about reasons for other bits than an uninterrupted run has."""
    recipe, starts, changes = loop.step.recipe, inputs.run.starts(), inputs.changes
    return [
        *bits_note(starts, place, loop.state.position, changes, deterministic=recipe.deterministic),
        *workspace_note(recipe, loop.ranks),
    ]


def workspace_note(recipe: Recipe, ranks: Ranks) -> list[str]:
    """A note about a setting of cuBLAS that contradicts --deterministic."""
    value = os.environ.get(WORKSPACE, "")
    on_gpu = ranks.device.type == "cuda"
    if not (recipe.deterministic and on_gpu) or value in DETERMINISTIC_WORKSPACES:
        return []
    return [
        f"{WORKSPACE}={shown(value)} lets matrix products differ from run to run: unset it, or "
        f"set it to {' or '.join(DETERMINISTIC_WORKSPACES)}"
    ]


def slow_to_save(recipe: Recipe, rehearsal: RehearsalResult | None) -> list[str]:
    """A note if a save takes more than half of the time that a stop signal leaves."""
    provider = provider_here(recipe.spot_notice)
    grace = min(recipe.grace, PROVIDERS[provider].warning_s if provider else recipe.grace)
    if rehearsal is None or rehearsal.seconds <= grace / 2:
        return []
    return [
        f"a save takes {rehearsal.seconds:.0f} s, and a stop signal leaves only {grace:.0f} s "
        "until the machine ends: put --run on a faster disk, or raise --grace"
    ]
