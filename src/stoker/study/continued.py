"""A run that goes on where the run of another cell ended.

Invariants: the other run is only read. The copy appears complete or not at all, so a cell that was
killed while it copied begins again. What is copied is enough to go on: the record, the events and
the last checkpoint.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from stoker.commit import remove, sync
from stoker.errors import StokerError
from stoker.run.directory import Run
from stoker.survive.manifest import pointer

SKIPPED = ("lock", "checkpoints", "best", ".*", "launcher*")


def copy_run(source: Path, target: Path, change: Callable[[Run], None] = lambda run: None) -> Run:
    """The copy of a run, made if it is not there yet; `change` is called with it before it appears.
    Raises StokerError where the run has no checkpoint to go on from."""
    if target.exists():
        return Run(target)
    last = pointer(source / "last")
    if last is None:
        raise StokerError(f"{source} has no last checkpoint to go on from")
    draft = target.with_name(f".{target.name}.copy")
    remove(draft)
    shutil.copytree(source, draft, ignore=shutil.ignore_patterns(*SKIPPED))
    shutil.copytree(source / "checkpoints" / last, draft / "checkpoints" / last)
    change(Run(draft))
    draft.rename(target)
    sync(target.parent)
    return Run(target)
