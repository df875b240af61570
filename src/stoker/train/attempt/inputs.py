"""The inputs of the attempts of one command."""

from __future__ import annotations

import gc
from contextlib import suppress
from dataclasses import dataclass, field

import torch

from stoker.errors import BadRequest, StokerError
from stoker.host.counters import seconds_since_start
from stoker.price.ledger.budget import NO_LIMITS, BudgetLimits
from stoker.recipe.changes import Change
from stoker.run.directory import Run
from stoker.run.events import Events, Listener
from stoker.survive.reader import Reader
from stoker.survive.remote.mirror import RunMirror
from stoker.survive.remote.place import bound_location
from stoker.survive.stopping import StopRequest
from stoker.text import shown
from stoker.train.attempt.fit import checkpoints_of
from stoker.train.attempt.money import NO_MONEY, Money
from stoker.train.loaders import Prepared, prepare, with_start
from stoker.train.model.start import FIRST_RULES, RULES
from stoker.train.model.weight_places import InputFacts
from stoker.train.process_group import Ranks


@dataclass(frozen=True)
class AttemptOptions:
    """Flags of the command that are no keys of the recipe: the result stays the same."""

    accept_slow_link: bool = False
    """Train even if the link between the machines is too slow for the run."""
    profile: range | None = None
    """Steps of which rank 0 writes a trace."""
    compute_threads: int = 0
    """Threads of a forward and backward pass on a CPU; 0: as many as this process has cores. The
    bits of a result depend on it."""
    price_per_hour: float | None = None
    """Dollars that the user states for an hour of this machine."""
    limits: BudgetLimits = NO_LIMITS
    """What the run may cost, over all of its attempts."""
    until: float | None = None
    """The epoch after which to end, with a checkpoint from which the run can go on."""


@dataclass
class AttemptInputs:
    """Everything that an attempt is built from."""

    prepared: Prepared
    run: Run
    ranks: Ranks
    stop: StopRequest
    options: AttemptOptions = AttemptOptions()
    reader: Reader | None = None
    """The process that reads the first checkpoint back; None if that is not needed."""
    changes: list[Change] = field(default_factory=list)
    """Recipe keys that differ from those of the run."""
    money: Money = NO_MONEY
    began_s: float = 0.0
    """Seconds after the start of this process at which the attempt began."""
    mirror: RunMirror | None = None
    """Keeps the run in a store, on the first rank of each machine of such a run."""

    def begin(self, listeners: tuple[Listener, ...] = ()) -> None:
        """Number the attempt, open its events, find the newest checkpoint: on rank 0 first."""
        first = self.ranks.first
        self.run.require_place()
        self.attempt = self.ranks.from_first(self.run.new_attempt() if first else 0)
        path = self.run.events_path(self.attempt, self.ranks.rank)
        self.events = Events(path, (*listeners, *self.money.listeners) if first else ())
        self.money.begin(self.run, self.attempt, self.ranks, self.events, self.began_s)
        self.checkpoints = checkpoints_of(self.run, self.prepared)
        if first:
            self.newest, self.torn = self.checkpoints.recover()
        if self.mirror:
            here = self.ranks.rank - self.ranks.local_rank
            ranks_here = range(here, here + self.ranks.local_world)
            self.mirror.begin_attempt(self.attempt, self.ranks.world, ranks_here)
        self._follow_first()
        if not first:
            self.newest, self.torn = self.checkpoints.newest()

    def share_files(self) -> None:
        """Wait for what rank 0 has written into the run directory, also on machines that share no
        disk with it."""
        if self.mirror:
            self.mirror.share_files()
        self._follow_first()

    def _follow_first(self) -> None:
        """Wait for rank 0; in a run that is kept in a store, have what it has put there."""
        self.ranks.meet()
        if bound_location(self.run.path):
            if self.mirror:
                self.mirror.refresh()
            self.ranks.meet()

    def meet_at_end(self) -> None:
        """Wait until all ranks of a run in a store have written their last events: then they are
        uploaded."""
        if bound_location(self.run.path):
            with suppress(RuntimeError, StokerError):
                self.ranks.meet()

    def build_again(self) -> None:
        """Prepare for the next attempt after trouble: free the old model, build a new one."""
        self.began_s, self.changes, self.reader = seconds_since_start(), [], None
        dataset, recipe = self.prepared.dataset, self.prepared.recipe
        del self.prepared
        gc.collect()
        if self.ranks.device.type == "cuda":
            torch.cuda.empty_cache()
        self.prepared = prepare(dataset, recipe, self.ranks, recorded_input(self.run))

    @property
    def rules(self) -> int:
        """The rules by which this run started from weights."""
        return RULES if self.run.start.get("rules") == RULES else FIRST_RULES

    def load_start(self) -> None:
        """Load the weights that the recipe names, where no checkpoint replaces them. Raises
        BadRequest where they are not those that the run began with, or differ between ranks, or
        where the run is pruned: its masks are in its checkpoints."""
        if self.newest is None and self.run.masks:
            raise BadRequest(
                f"{self.run.path} is a pruned run, and no checkpoint with its masks is left: "
                "remove it, and start the command that pruned it again"
            )
        if self.newest is None and self.prepared.start is None:
            self.prepared = with_start(self.prepared, self.rules)
        start, recipe = self.prepared.start, self.prepared.recipe
        own = start.sha256 if start else ""
        before = self.run.start.get("sha256") or own
        if own not in ("", before):
            raise BadRequest(
                f"{shown(recipe.weights or recipe.model)} no longer holds the weights that "
                f"{self.run.path} began with, and its checkpoints are gone: name another --run"
            )
        if recipe.weights or recipe.pretrained:
            number = int(own[:12] or "0", 16)
            if self.ranks.from_first(number) != number:
                raise BadRequest(
                    f"ranks read different weights from {shown(recipe.weights or recipe.model)}: "
                    "copy the same file to every machine"
                )


def recorded_input(run: Run) -> InputFacts | None:
    """The input of the weights that a run began with; None for a run that does not exist."""
    return InputFacts.of(run.start) if run.exists else None
