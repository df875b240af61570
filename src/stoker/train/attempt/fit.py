"""Whether a checkpoint can be one of this run: its model, its optimiser and its position.

Invariant: a checkpoint that this run wrote fits, whatever recipes the run had and has.
"""

from __future__ import annotations

from functools import partial

from stoker.errors import BadRequest
from stoker.run.directory import Run
from stoker.run.progress import wrong_position
from stoker.survive.checkpoint import Snapshot
from stoker.survive.checkpoints import Checkpoints
from stoker.train import state
from stoker.train.loaders import Prepared
from stoker.train.model.masks import packed_digest


def checkpoints_of(run: Run, prepared: Prepared) -> Checkpoints:
    """The checkpoints of a run; those of another model or position are passed over."""
    keep = prepared.recipe.keep_checkpoints
    fits = partial(misfit, run, prepared)
    return Checkpoints(run.path, keep, misfit=fits, check_place=run.require_place)


def require_same_weights(run: Run, prepared: Prepared) -> None:
    """Raise BadRequest where the changed code of a model does not take the run's weights."""
    checkpoints = checkpoints_of(run, prepared)
    newest, _ = checkpoints.newest()
    if newest is None and checkpoints.reasons and Checkpoints(run.path).newest()[0]:
        reason = next(iter(checkpoints.reasons.values()))
        raise BadRequest(
            f"the changed code of {prepared.recipe.model} cannot go on with this run ({reason}): "
            "put back the text that the run keeps, or name another --run"
        )


def misfit(run: Run, prepared: Prepared, snapshot: Snapshot) -> str:
    """Why a checkpoint cannot be one of this run; empty where it can."""
    if reason := state.misfit(prepared.recipe, prepared.model, snapshot):
        return f"{run.path / 'checkpoints' / snapshot.name}: {reason}"
    reason = wrong_position(run, snapshot.facts, len(prepared.split)) or wrong_masks(run, snapshot)
    return f"{run.path / 'checkpoints' / snapshot.name}: {reason}" if reason else ""


def wrong_masks(run: Run, snapshot: Snapshot) -> str:
    """Why a checkpoint does not have the masks of a run; empty where it does, or neither has any.
    A pruned run never goes on as a dense one."""
    planned, packed = run.masks.get("digest"), snapshot.state.get("masks")
    if planned == (packed_digest(packed) if packed else None):
        return ""
    return "its masks are not those of this run" if packed else "it has no masks, and this run does"
