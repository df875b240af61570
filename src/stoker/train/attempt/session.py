"""A run from start to end: join the ranks, make attempts, leave.

Invariants: the same call starts a run, resumes it, or finds it finished. Trouble that all ranks
agree on (bad numbers, no memory) ends an attempt; the next attempt, in the same processes, resumes
from the newest good checkpoint with a remedy. A rank that is alone with its trouble records the
remedy and ends; the others notice, and the next processes resume with it. Every attempt that ends
writes an `end` event.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from contextlib import ExitStack
from itertools import pairwise

from stoker.data.dataset import Dataset
from stoker.data.loading.stored_size import check_sizes
from stoker.data.shards import print_note
from stoker.errors import BadRequest, Interrupted, StokerError
from stoker.fleet.launcher import ELASTIC, is_rank, joins_others
from stoker.recipe.changes import CONSENT, Change
from stoker.recipe.changes import changes as changes_of
from stoker.recipe.recipe import Recipe
from stoker.recipe.resolve import Resolved, show_config
from stoker.recipe.schedule import Timeline, cuts
from stoker.run.directory import Run
from stoker.run.events import Events, Listener
from stoker.run.model_code import keep_code
from stoker.run.storage import RunInUse
from stoker.stores.client import StoreClient
from stoker.stores.lease import LeaseHeld
from stoker.survive.checkpoints import Checkpoints
from stoker.survive.reader import Reader, early_reader
from stoker.survive.remedies import EXPLODING, Remedies, Remedy, Trouble, keep_evidence
from stoker.survive.remote.mirror import RunMirror, lease_seconds
from stoker.survive.remote.peers import propose
from stoker.survive.remote.place import bound_location
from stoker.survive.spot import watching
from stoker.survive.stopping import STARTING, UNCHANGED, StopRequest, stops_at_once
from stoker.text import say
from stoker.train.attempt.announce import record_of
from stoker.train.attempt.assembly import assemble
from stoker.train.attempt.end import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    REFUSED,
    ROLLED_BACK,
    exit_interrupted,
    write_end,
)
from stoker.train.attempt.fit import checkpoints_of, require_same_weights
from stoker.train.attempt.inputs import AttemptInputs, AttemptOptions, recorded_input
from stoker.train.attempt.launch import limit_time
from stoker.train.attempt.loop import Loop
from stoker.train.attempt.lost_peers import naming_lost_peers
from stoker.train.attempt.money import counting
from stoker.train.device import fix_workspace
from stoker.train.loaders import prepare
from stoker.train.model.own_code import own_code_of
from stoker.train.process_group import Ranks

ELASTIC_STORE_WAIT_S = 120.0
"""How much longer an elastic run waits for the lease of a run in a store: another node may upload
its last checkpoint."""
REMEDY_S = 10.0
"""How long to try to tell other machines of a remedy."""
LOCK_WAIT_S, ELASTIC_LOCK_WAIT_S = 10.0, 45.0
"""How long to wait for the lock of a run; longer if a node without connection may still hold it."""


def train(
    data: str | os.PathLike[str],
    resolved: Resolved,
    run_path: str | os.PathLike[str],
    listeners: tuple[Listener, ...] = (),
    stop: StopRequest | None = None,
    allowed: Collection[str] = (),
    options: AttemptOptions = AttemptOptions(),  # noqa: B008, because it is frozen
    reader: Reader | None = None,
) -> str:
    """Train until the run is finished or a stop is requested; returns "finished" or "interrupted".
    `allowed` are recipe keys that may differ from those of the run; `reader` reads the first
    checkpoint of a new run back, and is closed here. Raises StokerError if the run
    is refused, fails, or loses a rank."""
    stop = StopRequest() if stop is None else stop
    run, recipe, dataset = Run(run_path), resolved.recipe, Dataset(data)
    with ExitStack() as leaving:
        leaving.enter_context(naming_lost_peers(run))
        if reader := reader or early_reader(run.path, recipe.rehearse):
            leaving.callback(reader.close)
        fix_workspace(recipe)  # before CUDA starts
        ranks = Ranks.join(options.compute_threads) if joins_others() else None
        with stops_at_once(stop, STARTING, UNCHANGED):
            if ranks is None:
                with stop.held_back():  # other ranks may be inside torch, waiting for this one
                    ranks = Ranks.join(options.compute_threads, stop)
            leaving.push(lambda kind, *_: ranks.leave(failed=kind is not None))
            leaving.callback(run.unlock)
            mirror = open_mirror(run, ranks)
            if mirror:
                leaving.push(lambda kind, *_: mirror.close(failed=kind is not None))
            check_new_sizes(run, recipe, dataset)
            prepared = prepare(dataset, recipe, ranks, recorded_input(run))
            inputs = AttemptInputs(prepared, run, ranks, stop, options, reader, mirror=mirror)
            del prepared  # so that inputs can free the model
            inputs.changes = open_run(inputs, resolved, allowed)
            limit_time(recipe, stop)
        leaving.enter_context(watching("off" if ranks.local_rank else recipe.spot_notice, stop))
        limits, price = options.limits, options.price_per_hour
        inputs.money = leaving.enter_context(
            counting(run, ranks, stop, limits, price, recipe.spot_notice)
        )
        while True:
            inputs.begin(listeners)
            record_changes(inputs, resolved)
            outcome = run_attempt(inputs)
            if outcome != ROLLED_BACK:
                inputs.meet_at_end()
                return outcome
            inputs.build_again()


def check_new_sizes(run: Run, recipe: Recipe, dataset: Dataset) -> None:
    """Raise BadRequest for sizes that a set does not allow, unless the run has them already: it
    began when any were allowed."""
    values = run.values if run.exists else {}
    names = {change.name for change in changes_of(values, recipe.values())}
    if not values or names & {"batch_size", "image_size", "phases"}:
        check_sizes(recipe, dataset.split("train"))


def open_run(inputs: AttemptInputs, resolved: Resolved, allowed: Collection[str]) -> list[Change]:
    """Lock the run and create it if it is new; the recipe keys that have changed. Raises BadRequest
    for a change that is not allowed or that leaves nothing to train."""
    run, ranks, prepared = inputs.run, inputs.ranks, inputs.prepared
    if ranks.first:
        if not run.holds_lock:
            lock(run)
        if not run.exists:
            keep_code(run, own_code_of(resolved.recipe))
        run.create(record_of(resolved, prepared), show_config(resolved))
    inputs.share_files()
    run.hold()
    changes = run.recipe_changes(resolved.recipe, prepared.dataset, allowed)
    Checkpoints(run.path).refuse_newer()
    if any(change.name == "model_code" for change in changes):
        require_same_weights(run, prepared)
    if needs_record(changes) and (newest := checkpoints_of(run, prepared).newest()[0]):
        # Refuses a recipe without a batch, before it is recorded.
        position, step = newest.facts["position"], newest.facts["step"]
        Timeline.of(resolved.recipe, len(prepared.split), position, step)
    return changes


def lock(run: Run) -> None:
    """Lock the run. Raises RunInUse; in an elastic run Interrupted, as a node that hangs or stands
    still may have the lock, and the others have lost it."""
    if ELASTIC not in os.environ:
        run.lock(LOCK_WAIT_S)
        return
    try:
        run.lock(ELASTIC_LOCK_WAIT_S)
    except RunInUse as error:
        raise Interrupted(f"{error}; the same command tries again") from error


def open_mirror(run: Run, ranks: Ranks) -> RunMirror | None:
    """The copy in a store of a run that is kept there, on the first rank of each machine; None for
    another rank, and for a run in a folder. Raises StokerError where another process trains it."""
    location = bound_location(run.path)
    if location is None:
        return None
    with ExitStack() as leaving:
        mirror = None
        if ranks.first:
            lock(run)
            mirror = RunMirror(run.path, location, leads=True, report=print_note)
            take_lease(mirror)
            leaving.callback(mirror.close, failed=True)
        ranks.meet()
        if ranks.local_rank == 0 and mirror is None:
            mirror = RunMirror(run.path, location, leads=False, report=print_note)
            mirror.open(0.0)
        ranks.meet()
        leaving.pop_all()  # the caller closes it
    if mirror:
        run.taken_over = lambda: mirror.lost
    return mirror


def take_lease(mirror: RunMirror) -> None:
    """Open the mirror of rank 0. Raises LeaseHeld; in an elastic run Interrupted. A lease ends by
    itself if its machine is gone."""
    wait_s = 2 * lease_seconds()
    if ELASTIC not in os.environ:
        mirror.open(wait_s)
        return
    try:
        mirror.open(wait_s + ELASTIC_STORE_WAIT_S, refuses=False)
    except LeaseHeld as error:
        raise Interrupted(f"{error}; the same command tries again") from error


def record_changes(inputs: AttemptInputs, resolved: Resolved) -> None:
    """Record where an accepted recipe begins to apply; again if the checkpoint there is lost."""
    run, ranks, newest = inputs.run, inputs.ranks, inputs.newest
    position, step = (newest.facts["position"], newest.facts["step"]) if newest else (0, 0)
    if needs_record(inputs.changes) or run.recipe_start()[0] > position:
        ranks.meet()
        if ranks.first:
            keep_code(run, own_code_of(resolved.recipe))
            run.change_recipe(resolved.recipe, show_config(resolved), position, step)
        inputs.share_files()


def needs_record(changes: list[Change]) -> bool:
    return any(change.kind == CONSENT for change in changes)


def run_attempt(inputs: AttemptInputs) -> str:
    """Train until the run is finished, interrupted, or in trouble with a remedy; the outcome."""
    events, stop = inputs.events, inputs.stop
    loop, start = None, inputs.newest.facts if inputs.newest else {}
    try:
        with naming_lost_peers(inputs.run, inputs.attempt, events):
            loop = assemble(inputs)
            outcome = FINISHED if loop.run() else INTERRUPTED
        if outcome == FINISHED:
            reason = loop.early_end or None
            if reason and start.get("position") == loop.state.position:
                reason += "; no step was made: raise it, or set it to 0, to train on"
        else:
            reason = stop.reason or "another rank was told to stop"
        record_end(events, loop, outcome, reason)
        return outcome
    except Trouble as trouble:
        assert loop is not None
        try:
            if not trouble.agreed:
                leave_alone(trouble, loop, inputs)
            with naming_lost_peers(inputs.run, inputs.attempt, events):
                choose_remedy(trouble, loop, inputs)
        except BaseException as error:
            record_end(events, loop, FAILED, str(error))
            raise
        record_end(events, loop, ROLLED_BACK, str(trouble))
        return ROLLED_BACK
    except Interrupted as error:
        if loop is not None:
            record_end(events, loop, INTERRUPTED, str(error), saved=False)
            raise
        reason = stop.reason or str(error)
        write_end(events, INTERRUPTED, reason, None, saved=True, start=start)
        if inputs.ranks.world > 1 or not stop:
            raise  # others are elsewhere: this rank meets them no more
        return INTERRUPTED
    except BadRequest as error:
        record_end(events, loop, REFUSED, str(error))
        raise
    except BaseException as error:
        record_end(events, loop, FAILED, f"{type(error).__name__}: {error}")
        raise
    finally:
        if loop is not None:
            loop.close()  # before the lock is released: another process must not see half a save
        events.close()


def choose_remedy(trouble: Trouble, loop: Loop, inputs: AttemptInputs) -> None:
    """Keep the evidence, set aside what was saved after the trouble began, and choose a remedy. All
    ranks choose the same one; rank 0 records it. Raises StokerError if no remedy is left."""
    run, ranks, losses = inputs.run, inputs.ranks, loop.guards.losses
    run.require_place()
    loop.records.log.flush()
    # If the loss was far too high before the trouble, on any rank, then the weights were bad from
    # the first of those steps on.
    first_high = loop.earliest(losses.since if losses.high else None)
    blown_up = trouble.kind == EXPLODING or first_high < trouble.since
    good_until = first_high - 1 if blown_up else trouble.since
    good_until = max(good_until, run.masks.get("step", -1))  # what was pruned was not trained
    facts = {"trouble": str(trouble), "step": trouble.step, "since": trouble.since}
    evidence = {**facts, **loop.step.evidence(), "losses": list(losses.recent)}
    keep_evidence(run.path, trouble.step, ranks.rank, evidence)
    loop.records.saves.checkpoints.join()
    if ranks.first:
        inputs.checkpoints.set_aside_after(good_until)
    ranks.meet()
    newest, _ = inputs.checkpoints.newest()
    remedies = Remedies(run.path)
    ranks.meet()
    # The folder of another machine may still have what was set aside on this one.
    position = ranks.from_first(newest.facts["position"] if newest else 0)
    remedy = remedy_for(trouble, loop, remedies, resume_position=position, exploded=blown_up)
    if ranks.first:
        remedies.take(remedy)
    ranks.meet()


def leave_alone(trouble: Trouble, loop: Loop, inputs: AttemptInputs) -> None:
    """Record the remedy and end this process: other ranks may wait for it inside a collective, and
    nothing can be agreed with them. Raises StokerError if no remedy is left. The device is not
    asked for anything: it may wait for the other ranks, too."""
    inputs.run.require_place()
    remedies = Remedies(inputs.run.path)
    remedy = remedy_for(trouble, loop, remedies)
    if remedies.micro_batch(loop.step.recipe) == loop.step.micro_batch:  # no other rank was first
        remedies.take(remedy)
        send_remedy(inputs.run, remedy)
    write_end(inputs.events, INTERRUPTED, remedy.text(), loop.state, saved=False)
    say(f"stoker: {remedy.text()}; the same command goes on", stream=sys.stderr)
    loop.close()
    exit_interrupted(steps_aside=is_rank())


def send_remedy(run: Run, remedy: Remedy) -> None:
    """Tell the machine that leads of a remedy, where machines share no disk. What goes wrong is a
    note: the same trouble comes again."""
    if location := bound_location(run.path):
        try:
            propose(StoreClient(location, patience_s=REMEDY_S), remedy)
        except StokerError as error:
            print_note(str(error))


def remedy_for(
    trouble: Trouble,
    loop: Loop,
    remedies: Remedies,
    *,
    resume_position: int = 0,
    exploded: bool = False,
) -> Remedy:
    """The remedy for trouble, which every rank chooses alike."""
    batch = loop.timeline.batch_of_step(min(trouble.step, loop.timeline.steps - 1))
    share = max(end - begin for begin, end in pairwise(cuts(batch.size, loop.ranks.world)))
    return remedies.choose(
        trouble,
        loop.step.recipe,
        position=batch.position,
        resume_position=resume_position,
        micro_batch=min(loop.step.micro_batch or share, share),
        exploded=exploded,
    )


def record_end(
    events: Events, loop: Loop | None, outcome: str, reason: str | None, *, saved: bool = True
) -> None:
    """Write what is left to log, the last verdict, and the `end` event."""
    saved = saved and outcome not in (FAILED, REFUSED)
    parts: dict[str, float] = {}
    # After a failure a GPU may not answer any more.
    if loop and (outcome != FAILED or loop.ranks.device.type == "cpu"):
        loop.records.log.flush()
        if outcome in (FINISHED, INTERRUPTED):
            loop.records.verdicts.judge(loop.state.step)
        parts = loop.spans.lap().parts()
    write_end(events, outcome, reason, loop.state if loop else None, saved=saved, parts=parts)
