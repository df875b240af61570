"""The inputs of one attempt."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.recipe.changes import Change
from stoker.run.directory import Run
from stoker.run.events import Events
from stoker.survive.checkpoint import Snapshot
from stoker.survive.checkpoints import Checkpoints
from stoker.survive.rehearsal import Reader
from stoker.survive.stopping import StopRequest
from stoker.train.loaders import Prepared
from stoker.train.process_group import Ranks


@dataclass
class AttemptInputs:
    """Everything that an attempt is built from."""

    prepared: Prepared
    run: Run
    ranks: Ranks
    events: Events
    stop: StopRequest
    attempt: int
    """The number of the attempt."""
    changes: list[Change]
    """Recipe keys that differ from those of the run."""
    reader: Reader | None = None
    """The process that reads the first checkpoint back; None if that is not needed."""
    began_s: float = 0.0
    """Seconds after the start of this process at which the attempt began."""
    accept_slow_link: bool = False
    """Train even if the link between the machines is too slow for the run."""

    def __post_init__(self) -> None:
        self.checkpoints = Checkpoints(self.run.path, self.prepared.recipe.keep_checkpoints)
        self.newest: Snapshot | None = None
        self.torn: list[str] = []

    def find_newest(self) -> None:
        """Find the newest checkpoint. Rank 0 sets torn ones aside before the others look."""
        if self.ranks.first:
            self.newest, self.torn = self.checkpoints.recover()
        self.ranks.meet()
        if not self.ranks.first:
            self.newest, self.torn = self.checkpoints.newest()
