"""Builds the loop of an attempt, with the state of the newest checkpoint.

Invariant: every rank takes the same path here, so that ranks meet at the same points.
"""

from __future__ import annotations

import math
import os
import socket
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import nn

from stoker.chance import seed_of
from stoker.errors import BadRequest, StokerError
from stoker.faults import reach
from stoker.fleet.launcher import ELASTIC
from stoker.measure.clocks import clock_of
from stoker.measure.gradient_exchange import GradientExchange
from stoker.measure.spans import Spans
from stoker.measure.trials.link import measure_send_rate
from stoker.recipe.schedule import Timeline
from stoker.recipe.summary import warmup_steps
from stoker.run.events import Events
from stoker.survive.divergence import LossWatch
from stoker.survive.rehearsal import RehearsalResult, rehearse
from stoker.survive.remedies import Remedies
from stoker.survive.stopping import STARTING, UNCHANGED, stops_at_once
from stoker.survive.watchdog import GIVE_UP_AFTER, Standing, Watchdog, bounded, stacks
from stoker.text import say
from stoker.train.attempt.announce import announce, usage_facts
from stoker.train.attempt.end import INTERRUPTED, exit_interrupted, write_end
from stoker.train.attempt.inputs import AttemptInputs
from stoker.train.attempt.loop import Guards, Loop, Records
from stoker.train.loaders import Loaders, build_loaders
from stoker.train.model.freeze import plan_freeze
from stoker.train.model.start import FIRST_RULES
from stoker.train.model_input import input_maker
from stoker.train.records.kept_evaluation import EvaluationKeeper
from stoker.train.records.saving import Saves
from stoker.train.records.step_log import StepLog
from stoker.train.records.trace import NAME, ProfiledSpans, trace_writer
from stoker.train.records.verdicts import VerdictWatch
from stoker.train.shape_trial import ShapeTrial, compile_model
from stoker.train.state import TrainState
from stoker.train.step import Step
from stoker.train.trials.link_check import too_slow

BETWEEN_STEPS = ("checkpoint", "evaluation", "compile", "measuring", "other")
PROGRESS = (*BETWEEN_STEPS, "data", "to_device", "forward", "backward", "optimiser")
"""The parts of a step, in the order in which a rank reaches them."""


def assemble(inputs: AttemptInputs) -> Loop:
    """The loop of an attempt, ready to run. Raises StokerError if the attempt cannot begin, and
    Interrupted at a stop request before there is a loop that would hear it."""
    with stops_at_once(inputs.stop, STARTING, UNCHANGED):
        reach("starting")
        step = build_step(inputs)
        rehearsal = rehearse_save(inputs, step.state)
        link = check_link(inputs, step)
    guards = build_guards(inputs, step)
    trial, loaders = build_shape_trial(inputs, step), open_loaders(inputs, step)
    loop = Loop(
        step, trial, loaders, guards, build_records(inputs, step, guards), inputs.options.until
    )
    announce(loop, inputs, rehearsal, link)
    if rehearsal:
        loop.records.saves.set_interval(rehearsal.busy_s)
        inputs.money.times.saved(rehearsal.seconds)
    inputs.money.guard()
    loop.begin()
    return loop


def build_step(inputs: AttemptInputs) -> Step:
    """The step, with the newest checkpoint. Raises StokerError if ranks see different files."""
    inputs.load_start()
    prepared, ranks, run = inputs.prepared, inputs.ranks, inputs.run
    recipe, model = prepared.recipe, prepared.model
    timeline = Timeline.of(recipe, len(prepared.split), *run.recipe_start())
    state = TrainState.fresh(recipe, model, ranks.device)
    keeps, position = inputs.rules != FIRST_RULES, 0
    freeze = replace(plan_freeze(recipe, model), keeps_statistics=keeps)
    if inputs.newest:
        position = inputs.newest.facts["position"]
    if freeze.holds(position, timeline.samples):  # once the optimiser knows every weight
        freeze.apply(model)
    spans = build_spans(inputs, state)
    wrap = partial(wrap_model, inputs, timeline, spans)
    wrapped, exchange = wrap()
    if inputs.newest:
        state.restore(inputs.newest)
    remedies = Remedies(run.path)
    name = inputs.newest.name if inputs.newest else ""
    fingerprint = seed_of(name, *run.recipe_start(), *map(repr, remedies.taken)) >> 2
    if ranks.from_first(fingerprint) != fingerprint:
        raise StokerError(
            f"ranks see different files in {run.path}: put --run on a disk that all machines share"
        )
    to_input = input_maker(prepared.normalise, ranks.device, recipe.channels_last, recipe.amp)
    parts = (recipe, timeline, ranks, state, wrapped, to_input, remedies, spans, exchange)
    weights = prepared.weights_on(ranks.device)
    return Step(*parts, freeze=freeze, wrap=wrap, class_weights=weights)


def wrap_model(
    inputs: AttemptInputs, timeline: Timeline, spans: Spans
) -> tuple[nn.Module, GradientExchange | None]:
    """The model as a step calls it: gradients averaged over ranks, compiled if asked for."""
    ranks, prepared = inputs.ranks, inputs.prepared
    wrapped = ranks.wrap(prepared.model)
    exchange = ranks.watch_exchange(wrapped, spans)
    ranks.settle(wrapped, prepared.model, prepared.timeline.stretches[0].image_size)
    if prepared.recipe.compile:
        wrapped = compile_model(wrapped, timeline)
    return wrapped, exchange


def build_spans(inputs: AttemptInputs, state: TrainState) -> Spans:
    """The parts of each step; on rank 0, those of the chosen steps are in a trace too."""
    device, chosen, events = inputs.ranks.device, inputs.options.profile, inputs.events
    if chosen is None or not inputs.ranks.first:
        return Spans(clock_of(device))
    prepared, start = inputs.prepared, inputs.run.recipe_start()
    end = Timeline.of(prepared.recipe, len(prepared.split), *start).steps
    steps = range(chosen.start, min(chosen.stop, end))
    path = inputs.run.attempt_path(inputs.attempt) / NAME
    write = trace_writer(path, lambda text: events.write("note", words=text))
    return ProfiledSpans(clock_of(device), steps, lambda: state.step, device, write)


def rehearse_save(inputs: AttemptInputs, state: TrainState) -> RehearsalResult | None:
    """Save once and read it back, on rank 0 of a run without checkpoints; None otherwise."""
    checkpoints, rehearsal = inputs.checkpoints, None
    if inputs.reader and not inputs.newest:
        say("saving a first checkpoint and reading it back")
        facts, copies = usage_facts(inputs.prepared), checkpoints.keep + 1
        rehearsal = rehearse(checkpoints.folder, state.snapshot(facts), inputs.reader, copies)
    inputs.newest = None  # as large as the model, and no longer needed
    inputs.ranks.meet()
    return rehearsal


def check_link(inputs: AttemptInputs, step: Step) -> tuple[float, float] | None:
    """Bytes a second that this rank can send to another machine, and CPU seconds for each byte;
    None if all ranks are on one machine. Raises BadRequest if a new run would wait too long."""
    ranks = inputs.ranks
    link = measure_send_rate(ranks.world) if ranks.world > ranks.local_world else None
    if link is None:
        return None
    # A --yes on one node counts for all; a run that has begun is not refused.
    accepted = any(ranks.largest([int(inputs.options.accept_slow_link), len(inputs.run.starts())]))
    if not accepted and (reason := too_slow(step, *link)):
        raise BadRequest(reason)
    return link


def build_guards(inputs: AttemptInputs, step: Step) -> Guards:
    recipe, classes = step.recipe, inputs.prepared.dataset.classes
    after_warm_up = step.timeline.stretches[0].first_step + warmup_steps(recipe, step.timeline)
    chance = math.inf if recipe.on_divergence == "off" else math.log(max(len(classes), 2))
    watchdog = build_watchdog(step, inputs.events, inputs.run.attempt_path(inputs.attempt))
    losses = LossWatch(chance, after_warm_up, step.state.began_high)
    return Guards(losses, watchdog, inputs.stop, inputs.run, inputs.money)


def build_shape_trial(inputs: AttemptInputs, step: Step) -> ShapeTrial:
    stop = inputs.stop

    def leave() -> None:
        write_end(inputs.events, INTERRUPTED, stop.reason, step.state, saved=True)
        exit_interrupted(steps_aside=stop.steps_aside, reason=stop.reason)

    return ShapeTrial(step, stop, leave)


def open_loaders(inputs: AttemptInputs, step: Step) -> Loaders:
    run, prepared = inputs.run, inputs.prepared
    lanes = run.record["lanes"] if run.exists else prepared.lanes

    def report(message: str) -> None:
        inputs.events.write("note", words=message)

    return build_loaders(prepared, lanes, inputs.ranks, step.batches, report)


def build_records(inputs: AttemptInputs, step: Step, guards: Guards) -> Records:
    events, first, alive = inputs.events, inputs.ranks.first, guards.watchdog.touch

    def watch(number: int, loss: float) -> None:
        guards.losses.add(number, loss)
        step.state.began_high = guards.losses.began_high  # a checkpoint keeps it

    log, facts = StepLog(events, watch), usage_facts(inputs.prepared)
    saves = Saves(step.recipe, step.state, inputs.checkpoints, facts, log, first, alive)
    verdicts = VerdictWatch(inputs.run, inputs.attempt, events, step)
    return Records(events, log, saves, verdicts, evaluation_keeper(inputs))


def evaluation_keeper(inputs: AttemptInputs) -> EvaluationKeeper | None:
    """Keeps the last evaluation, on rank 0 of a run that evaluates."""
    split, classes = inputs.prepared.evaluated, inputs.prepared.dataset.classes
    if split is None or not inputs.ranks.first:
        return None
    events = inputs.events
    return EvaluationKeeper(
        inputs.run.path, split, classes, lambda text: events.write("note", words=text)
    )


def build_watchdog(step: Step, events: Events, folder: Path) -> Watchdog:
    """In an elastic run the process ends at the first stall: its launcher starts again."""
    elastic, ranks = ELASTIC in os.environ, step.ranks

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

    def record_end(reason: str) -> None:
        write_end(events, INTERRUPTED, reason, step.state, saved=False)
        say(f"stoker: {reason}; the same command goes on", stream=sys.stderr)

    def give_up(reason: str) -> None:
        bounded(lambda: record_end(reason))
        exit_interrupted(steps_aside=elastic)

    return Watchdog(
        standing,
        folder,
        ranks.world,
        after_s=step.recipe.stall_after,
        report=lambda text: say(f"alarm: {text}"),
        give_up=give_up,
        patience=1 if elastic else GIVE_UP_AFTER,
    )
