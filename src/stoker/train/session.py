"""One attempt at a run: put the parts together, go on from the newest checkpoint, train, leave.

The same call starts, resumes or finds a run finished.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stoker.data.crops import View
from stoker.data.index import Dataset, SplitIndex
from stoker.data.loader import Loader
from stoker.data.order import Order, lanes_for
from stoker.errors import BadRequest, StokerError
from stoker.measure.machine import environment, seconds_since_start
from stoker.recipe.origins import Resolved, show_config
from stoker.recipe.position import Timeline
from stoker.recipe.recipe import Recipe
from stoker.recipe.summary import derived_line, warnings
from stoker.run import Events, Listener, Run
from stoker.survive.checkpoint import Checkpoints
from stoker.survive.stopping import StopWish
from stoker.train.device import batch_memory, input_maker, set_arithmetic
from stoker.train.evaluate import Evaluator
from stoker.train.loop import Loop
from stoker.train.model import Normalise, build_model
from stoker.train.ranks import Ranks
from stoker.train.state import TrainState

FINISHED, STOPPED = "finished", "interrupted"


def train(
    data: str | os.PathLike[str],
    resolved: Resolved,
    run_path: str | os.PathLike[str],
    listeners: tuple[Listener, ...] = (),
    stop: StopWish | None = None,
) -> str:
    """Train until the run is finished or somebody wishes it to stop; says which."""
    stop = StopWish() if stop is None else stop
    run, recipe = Run(run_path), resolved.recipe
    dataset = Dataset(data)
    ranks = Ranks.join()
    try:
        prepared = prepare(dataset, recipe, ranks)
        if ranks.first:
            run.lock()
            run.create(record_of(resolved, dataset), show_config(resolved))
        ranks.meet()
        run.refuse_other(recipe, dataset.fingerprint)
        attempt = ranks.from_first(run.new_attempt() if ranks.first else 0)
        events = Events(run.events_path(attempt, ranks.rank), listeners if ranks.first else ())
        return attend(prepared, run, ranks, events, stop)
    finally:
        run.unlock()
        ranks.leave()


@dataclass(frozen=True)
class Prepared:
    """What can be refused, made before anything is written."""

    dataset: Dataset
    recipe: Recipe
    split: SplitIndex
    timeline: Timeline
    model: nn.Module
    normalise: Normalise


def prepare(dataset: Dataset, recipe: Recipe, ranks: Ranks) -> Prepared:
    """Refuse what cannot be trained; build the network."""
    set_arithmetic(recipe)
    split = dataset.split("train")
    timeline = Timeline.of(recipe, len(split))
    smallest = min(stretch.batch_size for stretch in timeline.stretches)
    if smallest < 2 * ranks.world:
        raise BadRequest(
            f"batch_size = {smallest} is too small for {ranks.world} ranks: at least 2 each"
        )
    model, normalise = build_model(recipe, len(dataset.classes))
    layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
    model = model.to(device=ranks.device, memory_format=layout)  # type: ignore[call-overload]
    return Prepared(dataset, recipe, split, timeline, model, normalise)


def attend(prepared: Prepared, run: Run, ranks: Ranks, events: Events, stop: StopWish) -> str:
    """Train, and write down how it ended, whatever happens."""
    loop = None
    try:
        loop = assemble(prepared, run, ranks, events, stop)
        outcome = FINISHED if loop.run() else STOPPED
        reason = None if outcome == FINISHED else (stop.reason or "another rank was told to stop")
        note_end(events, loop, outcome, reason)
        return outcome
    except BaseException as error:
        note_end(events, loop, "failed", f"{type(error).__name__}: {error}")
        raise
    finally:
        if loop is not None:
            # Before the lock goes: nobody else may take a save under way for a torn one.
            loop.checkpoints.join()
            loop.loader.close()
            if loop.evaluator:
                loop.evaluator.close()
        events.close()


def note_end(events: Events, loop: Loop | None, outcome: str, reason: str | None) -> None:
    facts: dict[str, Any] = {"parts": {}}
    if loop is not None:
        state = loop.state
        facts = {"position": state.position, "step": state.step, "best": state.best}
        facts["parts"] = loop.spans.lap()
        if outcome != "failed":
            # After a failure the device may not answer any more.
            loop.log.flush()
    events.write("end", outcome=outcome, reason=reason, **facts)
    events.flush()


def assemble(prepared: Prepared, run: Run, ranks: Ranks, events: Events, stop: StopWish) -> Loop:
    """Everything the loop needs, with the state of the newest checkpoint."""
    recipe, model, timeline = prepared.recipe, prepared.model, prepared.timeline
    state = TrainState.fresh(recipe, model, ranks.device)
    wrapped = ranks.wrap(model)
    ranks.settle(wrapped, model, timeline.stretches[0].image_size)
    checkpoints = Checkpoints(run.path, recipe.keep_checkpoints)
    newest, torn = checkpoints.recover() if ranks.first else checkpoints.newest()
    if newest:
        state.restore(newest)
    if ranks.from_first(state.step) != state.step:
        raise StokerError(f"ranks see different checkpoints in {run.path}: is it one shared disk?")
    if recipe.compile:
        # Each shape by itself: a graph for "any size" would depend on which sizes came before.
        wrapped = torch.compile(wrapped, dynamic=False)  # type: ignore[assignment]
    loop = Loop(
        recipe=recipe,
        timeline=timeline,
        ranks=ranks,
        state=state,
        wrapped=wrapped,
        to_input=input_maker(prepared.normalise, ranks.device, recipe.channels_last),
        loader=training_loader(prepared, ranks),
        evaluator=evaluator_of(prepared, ranks),
        checkpoints=checkpoints,
        facts=usage_facts(prepared),
        events=events,
        stop=stop,
    )
    announce(loop, run, torn)
    return loop


def training_loader(prepared: Prepared, ranks: Ranks) -> Loader:
    recipe, split = prepared.recipe, prepared.split
    sizes = [stretch.batch_size for stretch in prepared.timeline.stretches]
    lanes = lanes_for(len(split), sizes)
    view = View(
        crop=recipe.crop,
        crop_scale=recipe.crop_scale,
        crop_pad=recipe.crop_pad,
        crop_pct=recipe.crop_pct,
        hflip=recipe.hflip,
        seed=recipe.seed,
    )
    return Loader(
        split,
        Order(split.shard_sizes, prepared.dataset.fingerprint, recipe.seed, lanes),
        view,
        rank=ranks.rank,
        world=ranks.world,
        threads=recipe.threads,
        prefetch=recipe.prefetch,
        allocate=batch_memory(ranks.device),
    )


def evaluator_of(prepared: Prepared, ranks: Ranks) -> Evaluator | None:
    """None where the set has nothing to evaluate on."""
    dataset, recipe = prepared.dataset, prepared.recipe
    if dataset.eval_split is None:
        return None
    return Evaluator(
        dataset.split(dataset.eval_split),
        View(crop_pct=recipe.crop_pct),
        ranks,
        batch_size=recipe.eval_batch_size,
        threads=recipe.threads,
        prefetch=recipe.prefetch,
    )


def announce(loop: Loop, run: Run, torn: list[str]) -> None:
    """The event that begins an attempt: where it starts, what follows from the recipe here."""
    recipe, timeline, ranks, state = loop.recipe, loop.timeline, loop.ranks, loop.state
    derived = derived_line(recipe, timeline, ranks.world)
    loop.events.write(
        "attempt",
        position=state.position,
        step=state.step,
        rank=ranks.rank,
        world=ranks.world,
        best=state.best,
        torn=torn,
        steps=timeline.steps,
        samples=timeline.samples,
        classes=len(loop.facts["classes"]),
        epochs=timeline.epochs,
        unseen=timeline.unseen,
        derived=derived,
        warnings=warnings(recipe, timeline) + idle_gpus(ranks) + split_otherwise(run, derived),
        startup_s=round(seconds_since_start(), 3),
        environment=environment(ranks.device),
    )
    loop.events.flush()


def record_of(resolved: Resolved, dataset: Dataset) -> dict[str, Any]:
    """What run.json says: enough to go on with the run on another machine."""
    return {
        "recipe": resolved.name,
        "digest": resolved.recipe.digest(),
        "values": resolved.recipe.values(),
        "data": str(Path(dataset.path).resolve()),
        "fingerprint": dataset.fingerprint,
        "classes": dataset.classes,
        "created": time.time(),
    }


def usage_facts(prepared: Prepared) -> dict[str, Any]:
    """What anyone needs to use the weights: classes, and how an image becomes an input."""
    dataset, recipe, normalise = prepared.dataset, prepared.recipe, prepared.normalise
    image_size = prepared.timeline.stretches[-1].image_size
    return {
        "model": recipe.model,
        "classes": dataset.classes,
        "fingerprint": dataset.fingerprint,
        "recipe_digest": recipe.digest(),
        "input": {
            "image_size": image_size,
            "crop_pct": recipe.crop_pct,
            "filter": "bilinear after power-of-two JPEG scaling",
            **asdict(normalise),
        },
    }


def split_otherwise(run: Run, derived: str) -> list[str]:
    """A word where the attempt before split its batches in another way."""
    before = [start["derived"] for start in run.starts()]
    now, then = (line.split(";")[0] for line in (derived, before[-1] if before else derived))
    if now == then:
        return []
    return [f"{then} before: the batches are the same, BatchNorm sees other groups of them"]


def idle_gpus(ranks: Ranks) -> list[str]:
    """A word about GPUs that nobody uses."""
    present = torch.cuda.device_count()
    if present <= ranks.local_world:
        return []
    return [f"{present} GPUs here, {ranks.local_world} used: --ranks {present} uses all"]
