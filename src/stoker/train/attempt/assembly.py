"""The parts of an attempt, put together with the state of the newest checkpoint."""

from __future__ import annotations

import math
import os
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from stoker.chance import seed_of
from stoker.errors import INTERRUPTED, STEPPED_ASIDE, BadRequest, StokerError
from stoker.faults import reach
from stoker.fleet.launcher import ELASTIC
from stoker.measure.clocks import clock_of
from stoker.measure.spans import Spans
from stoker.measure.trials.link import sending
from stoker.recipe.changes import Change
from stoker.recipe.recipe import Recipe
from stoker.recipe.schedule import Timeline
from stoker.recipe.summary import warmup_steps
from stoker.run.directory import Run
from stoker.run.events import Events
from stoker.survive.checkpoint import Snapshot
from stoker.survive.checkpoints import Checkpoints
from stoker.survive.divergence import LossWatch
from stoker.survive.rehearsal import Reader, RehearsalResult, rehearse
from stoker.survive.remedies import Remedies
from stoker.survive.stopping import StopRequest
from stoker.survive.watchdog import GIVE_UP_AFTER, Standing, Watchdog, bounded, stacks
from stoker.train.attempt.announce import announce, usage_facts
from stoker.train.attempt.loop import Loop
from stoker.train.compile import WarmUp
from stoker.train.device import input_maker
from stoker.train.loaders import Prepared, feed
from stoker.train.process_group import Ranks
from stoker.train.records.saving import Saves
from stoker.train.records.step_log import StepLog
from stoker.train.records.verdicts import VerdictWatch
from stoker.train.state import TrainState
from stoker.train.step import Step
from stoker.train.trials.link_check import too_slow

PROGRESS = (
    "checkpoint",
    "evaluation",
    "compile",
    "measuring",
    "other",
    "data",
    "to_device",
    "forward",
    "backward",
    "optimiser",
)
"""The parts of a step in the order in which a rank comes to them."""
PATIENCE_SHARE = 0.25
"""Share of the grace period for which ranks that wish to stop wait for a batch."""


@dataclass
class AttemptInputs:
    """What one attempt is made of, before it begins."""

    prepared: Prepared
    run: Run
    ranks: Ranks
    events: Events
    stop: StopRequest
    attempt: int
    changed: list[Change]
    reader: Reader | None = None
    began_s: float = 0.0
    """When in the life of this process the attempt began."""
    yes: bool = False
    """Train also where the network is too slow for it."""

    def __post_init__(self) -> None:
        keep = self.prepared.recipe.keep_checkpoints
        self.checkpoints = Checkpoints(self.run.path, keep)
        self.newest: Snapshot | None = None
        self.torn: list[str] = []

    def find_newest(self) -> None:
        """Look for the newest checkpoint; rank 0 puts things in order before the others look."""
        if self.ranks.first:
            self.newest, self.torn = self.checkpoints.recover()
        self.ranks.meet()
        if not self.ranks.first:
            self.newest, self.torn = self.checkpoints.newest()


def assemble(parts: AttemptInputs) -> Loop:
    """Everything the loop needs, with the state of the newest checkpoint."""
    prepared, run, ranks, events = parts.prepared, parts.run, parts.ranks, parts.events
    recipe, model, stop = prepared.recipe, prepared.model, parts.stop
    reach("starting")
    state = TrainState.fresh(recipe, model, ranks.device)
    spans = Spans(clock_of(ranks.device))
    wrapped = ranks.wrap(model)
    exchange = ranks.watch_exchange(wrapped, spans)
    ranks.settle(wrapped, model, prepared.timeline.stretches[0].image_size)
    facts = usage_facts(prepared.dataset, recipe, prepared.timeline, prepared.normalise)
    if parts.newest:
        state.restore(parts.newest)
    remedies = Remedies(run.path)
    name = parts.newest.name if parts.newest else ""
    seen = seed_of(name, *run.recipe_start(), *map(repr, remedies.taken)) >> 2
    if ranks.from_first(seen) != seen:
        raise StokerError(f"ranks see different files in {run.path}: is it one shared disk?")
    rehearsed = rehearsal(parts, state.snapshot(facts)) if parts.reader else None
    parts.newest = None  # as large as the network: let it go
    ranks.meet()
    timeline = Timeline.of(recipe, len(prepared.split), *run.recipe_start())
    if recipe.compile:
        # Each shape by itself: a graph for "any size" would depend on which sizes came before.
        wrapped = torch.compile(wrapped, dynamic=False)  # type: ignore[assignment]
    to_input = input_maker(prepared.normalise, ranks.device, recipe.channels_last)
    step = Step(recipe, timeline, ranks, state, wrapped, to_input, remedies, spans, exchange)
    link = sending(ranks.world) if ranks.world > ranks.local_world else None
    # A yes of one node counts for all, and a run that has begun is not asked.
    if (
        link
        and not any(ranks.largest([int(parts.yes), len(run.starts())]))
        and (words := too_slow(step, *link))
    ):
        raise BadRequest(words)
    chance = math.log(max(len(prepared.dataset.classes), 2))
    after_warm_up = timeline.stretches[0].first_step + warmup_steps(recipe, timeline)
    watched = recipe.on_divergence != "off"
    losses = LossWatch(chance if watched else math.inf, after_warm_up)
    log = StepLog(events, losses.add)
    watchdog = watchdog_of(recipe, ranks, events, run.attempt_path(parts.attempt), step)
    saves = Saves(recipe, state, parts.checkpoints, facts, events, log, ranks.first, watchdog.touch)
    lanes = run.record["lanes"] if run.exists else prepared.lanes
    feeding = feed(prepared, lanes, ranks, lambda words: events.write("note", words=words))
    loop = Loop(
        timeline=timeline,
        ranks=ranks,
        state=state,
        step=step,
        warm_up=WarmUp(step, stop, leave=lambda: leave_at_once(events, stop, state)),
        loader=feeding.loader,
        evaluator=feeding.evaluator,
        eval_every=recipe.eval_every,
        saves=saves,
        log=log,
        losses=losses,
        events=events,
        stop=stop,
        watchdog=watchdog,
        watch=VerdictWatch(run, parts.attempt, events, step),
        patience_s=PATIENCE_SHARE * recipe.grace,
    )
    announce(loop, run, parts.torn, parts.changed, rehearsed, parts.began_s, feeding.notes, link)
    if rehearsed:
        saves.set_interval(rehearsed.busy_s)
    loop.watchdog.begin()
    loop.watch.begin()
    return loop


def rehearsal(parts: AttemptInputs, snapshot: Snapshot) -> RehearsalResult | None:
    """Save and read back, once in the life of a run: what is resumed has been read back."""
    if parts.newest or parts.reader is None:
        return None
    copies = parts.checkpoints.keep + 1
    return rehearse(parts.checkpoints.folder, snapshot, parts.reader, copies)


def leave_at_once(events: Events, stop: StopRequest, state: TrainState) -> None:
    """End this process where it stands: everything is saved, the events say so."""
    where = {"position": state.position, "step": state.step, "best": state.best}
    why = {"outcome": "interrupted", "reason": stop.reason, "saved": True}
    events.write("end", **why, parts={}, **where)
    events.flush()
    os._exit(STEPPED_ASIDE if stop.steps_aside else INTERRUPTED)


def watchdog_of(recipe: Recipe, ranks: Ranks, events: Events, folder: Path, step: Step) -> Watchdog:
    """Somebody who notices when this rank stands still. Where peers may be replaced, the first
    stall is the last: the launcher gathers those who are left."""
    elastic = ELASTIC in os.environ

    def standing(still_s: float) -> Standing:
        phase = step.spans.now
        return Standing(
            rank=ranks.rank,
            host=socket.gethostname(),
            step=step.state.step,
            phase=phase,
            place=PROGRESS.index(phase),
            seconds=round(still_s, 1),
            samples=step.loaded.samples.tolist() if step.loaded else [],
            stacks=stacks(),
            time=time.time(),
        )

    def last_words(words: str) -> None:
        where = {"position": step.state.position, "step": step.state.step}
        why = {"outcome": "interrupted", "reason": words, "saved": False}
        events.write("end", **why, parts={}, **where)
        events.flush()
        print(f"stoker: {words}; the same command goes on", file=sys.stderr, flush=True)

    def give_up(words: str) -> None:
        bounded(lambda: last_words(words))
        os._exit(STEPPED_ASIDE if elastic else INTERRUPTED)

    return Watchdog(
        standing,
        folder,
        ranks.world,
        after_s=recipe.stall_after,
        report=lambda words: print(f"alarm: {words}", flush=True),
        give_up=give_up,
        patience=1 if elastic else GIVE_UP_AFTER,
    )
