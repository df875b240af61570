"""A run from start to end: join the ranks, attempt by attempt, leave.

Invariants: the same call starts, resumes or finds a run finished. Trouble that all ranks have
agreed on (bad numbers, no memory) ends an attempt; the next one, in the same processes, goes on
from the newest good checkpoint with a remedy. However an attempt ends, its events say how.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Collection
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import torch

from stoker.data.dataset import Dataset
from stoker.errors import BadRequest, Interrupted
from stoker.fleet.launcher import BEGAN, ELASTIC
from stoker.measure.machine import seconds_since_start
from stoker.recipe.changes import CONSENT, Change
from stoker.recipe.recipe import Recipe
from stoker.recipe.resolve import Resolved, show_config
from stoker.recipe.schedule import Timeline, cuts
from stoker.run.directory import Run
from stoker.run.events import Events, Listener
from stoker.survive.checkpoints import Checkpoints
from stoker.survive.rehearsal import Reader
from stoker.survive.remedies import Remedies, keep_evidence
from stoker.survive.spot import watching
from stoker.survive.stopping import StopRequest
from stoker.survive.trouble import EXPLODING, Trouble
from stoker.train.attempt.announce import record_of
from stoker.train.attempt.assembly import AttemptInputs, assemble
from stoker.train.attempt.loop import Loop
from stoker.train.attempt.lost_peers import naming_lost_peers
from stoker.train.loaders import prepare
from stoker.train.process_group import Ranks

FINISHED, STOPPED = "finished", "interrupted"
TROUBLED, FAILED, REFUSED = "rolled back", "failed", "refused"
LOCK_PATIENCE_S = {False: 10.0, True: 45.0}
"""By whether the run is elastic: then a node that is cut off may hold the lock until it notices."""


def train(
    data: str | os.PathLike[str],
    resolved: Resolved,
    run_path: str | os.PathLike[str],
    listeners: tuple[Listener, ...] = (),
    stop: StopRequest | None = None,
    allowed: Collection[str] = (),
    yes: bool = False,
) -> str:
    """Train until the run is finished or somebody wishes it to stop; says which. `yes`: also over
    a network that is too slow for it."""
    stop = StopRequest() if stop is None else stop
    run, recipe, dataset = Run(run_path), resolved.recipe, Dataset(data)
    with ExitStack() as leaving:
        reader = early_reader(run, recipe)
        if reader:
            leaving.callback(reader.close)
        ranks = Ranks.join()
        leaving.callback(ranks.leave)
        leaving.callback(run.unlock)
        prepared = prepare(dataset, recipe, ranks)
        if ranks.first:
            run.lock(LOCK_PATIENCE_S[ELASTIC in os.environ])
            run.create(record_of(resolved, dataset, prepared.lanes), show_config(resolved))
        ranks.meet()
        changed = run.recipe_changes(recipe, dataset, allowed)
        Checkpoints(run.path).refuse_newer()
        if needs_record(changed):
            refuse_without_batches(run, recipe, len(prepared.split))
        limit_time(recipe, stop)
        leaving.enter_context(watching("off" if ranks.local_rank else recipe.spot_notice, stop))
        began = 0.0
        while True:
            attempt = ranks.from_first(run.new_attempt() if ranks.first else 0)
            events = Events(run.events_path(attempt, ranks.rank), listeners if ranks.first else ())
            parts = AttemptInputs(
                prepared, run, ranks, events, stop, attempt, changed, reader, began, yes
            )
            settle_changes(parts, resolved)
            trouble = run_attempt(parts)
            if isinstance(trouble, str):
                return trouble
            began, changed, reader = seconds_since_start(), [], None
            del parts, prepared
            gc.collect()
            if ranks.device.type == "cuda":
                torch.cuda.empty_cache()
            prepared = prepare(dataset, recipe, ranks)


def early_reader(run: Run, recipe: Recipe) -> Reader | None:
    """The process that will read the first checkpoint back, where there is none yet."""
    if not recipe.rehearse or os.environ.get("RANK", "0") != "0" or Checkpoints(run.path).names():
        return None
    return Reader()


def limit_time(recipe: Recipe, stop: StopRequest) -> None:
    """Request a stop in time for the recipe's time limit, which counts from the command's start."""
    if recipe.time_limit:
        reserve = min(recipe.grace, recipe.time_limit / 4)
        began = float(os.environ.get(BEGAN, time.time() - seconds_since_start()))
        stop.after(max(began + recipe.time_limit - reserve - time.time(), 0.0))


def settle_changes(parts: AttemptInputs, resolved: Resolved) -> None:
    """Put on record from where on a recipe counts that was agreed on just now, or whose first
    checkpoint is lost."""
    parts.find_newest()
    run, newest = parts.run, parts.newest
    position, step = (newest.facts["position"], newest.facts["step"]) if newest else (0, 0)
    if needs_record(parts.changed) or run.recipe_start()[0] > position:
        parts.ranks.meet()
        if parts.ranks.first:
            run.change_recipe(resolved.recipe, show_config(resolved), position, step)
        parts.ranks.meet()


def refuse_without_batches(run: Run, recipe: Recipe, samples: int) -> None:
    """Refuse a recipe that leaves nothing to train, before anything of it is on record."""
    newest, _ = Checkpoints(run.path).newest()
    if newest:
        Timeline.of(recipe, samples, newest.facts["position"], newest.facts["step"])


def needs_record(changed: list[Change]) -> bool:
    return any(change.kind == CONSENT for change in changed)


def run_attempt(parts: AttemptInputs) -> str | Trouble:
    """Train, and write down how it ended, whatever happens."""
    events, stop = parts.events, parts.stop
    loop = None
    try:
        with naming_lost_peers(parts.run, parts.attempt, events):
            loop = assemble(parts)
            outcome = FINISHED if loop.run() else STOPPED
        reason = None if outcome == FINISHED else (stop.reason or "another rank was told to stop")
        note_end(events, loop, outcome, reason)
        return outcome
    except Trouble as trouble:
        assert loop is not None
        try:
            with naming_lost_peers(parts.run, parts.attempt, events):
                choose_remedy(trouble, loop, parts)
        except BaseException as error:
            note_end(events, loop, FAILED, str(error))
            raise
        note_end(events, loop, TROUBLED, str(trouble))
        trouble.__traceback__ = None  # it would keep all tensors of the step alive
        return trouble
    except Interrupted as error:
        note_end(events, loop, STOPPED, str(error), saved=False)
        raise
    except BadRequest as error:
        note_end(events, loop, REFUSED, str(error))
        raise
    except BaseException as error:
        note_end(events, loop, FAILED, f"{type(error).__name__}: {error}")
        raise
    finally:
        if loop is not None:
            # Before the lock goes: nobody else may take a save under way for a torn one.
            loop.saves.checkpoints.join(loop.watchdog.touch)
            loop.watchdog.close()
            loop.watch.close()
            loop.loader.close()
            if loop.evaluator:
                loop.evaluator.close()
        events.close()


def choose_remedy(trouble: Trouble, loop: Loop, parts: AttemptInputs) -> None:
    """Keep the evidence, set aside what was saved after the trouble began, choose a remedy. All
    ranks choose the same; rank 0 writes it down."""
    run, ranks, recipe = parts.run, parts.ranks, parts.prepared.recipe
    loop.log.flush()
    # The first step, on any rank, of those whose loss was far too high when the trouble came: the
    # weights that it began with were bad already.
    first_high = loop.earliest(loop.losses.since if loop.losses.high else None)
    blown_up = trouble.kind == EXPLODING or first_high < trouble.since
    good_until = first_high - 1 if blown_up else trouble.since
    facts = {"trouble": str(trouble), "step": trouble.step, "since": trouble.since}
    seen = {**facts, **loop.step.evidence(), "losses": list(loop.losses.recent)}
    keep_evidence(run.path, trouble.step, ranks.rank, seen)
    loop.saves.checkpoints.join()
    if ranks.first:
        Checkpoints(run.path).set_aside_after(good_until)
    ranks.meet()
    newest, _ = Checkpoints(run.path).newest()
    batch = loop.timeline.batch_of_step(min(trouble.step, loop.timeline.steps - 1))
    shares = cuts(batch.size, ranks.world)
    share = max(b - a for a, b in pairwise(shares))
    holds = min(loop.step.micro_batch or share, share)
    remedies = Remedies(run.path)
    ranks.meet()
    remedy = remedies.choose(
        trouble,
        recipe,
        position=batch.position,
        resume_position=newest.facts["position"] if newest else 0,
        micro_batch=holds,
        exploded=blown_up,
    )
    if ranks.first:
        remedies.take(remedy)
    ranks.meet()


def note_end(
    events: Events, loop: Loop | None, outcome: str, reason: str | None, *, saved: bool = True
) -> None:
    facts: dict[str, Any] = {"parts": {}, "saved": saved and outcome not in (FAILED, REFUSED)}
    if loop is not None:
        state = loop.state
        facts |= {"position": state.position, "step": state.step, "best": state.best}
        if outcome != FAILED or loop.ranks.device.type == "cpu":
            # After a failure the device may not answer any more.
            loop.log.flush()
            if outcome in (FINISHED, STOPPED):
                loop.watch.judge(state.step)
            facts["parts"] = loop.spans.lap().parts()
    events.write("end", outcome=outcome, reason=reason, **facts)
    events.flush()
