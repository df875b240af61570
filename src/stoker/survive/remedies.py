"""What was done about trouble, on record in the run: the next attempt, and the next machine, do the
same.

    remedies.json       in the order in which they were taken
    trouble/STEP/       the evidence, a file a rank

Invariants: a remedy is plain data; those that change the result count from a position on, so a run
with remedies is still a pure function of its position. A recipe that was changed since starts with
a clean sheet of retries.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stoker.commit import write_json
from stoker.errors import StokerError
from stoker.recipe.recipe import Recipe
from stoker.survive.trouble import EXPLODING, MEMORY, Trouble

FILE = "remedies.json"
CUT = 0.5
"""What a cut leaves of the learning rate."""
SMALLEST_MICRO_BATCH = 2


@dataclass(frozen=True)
class Remedy:
    """skip: the batch at `position` is left out. cut: the learning rate is lower from there on.
    micro_batch: ranks that held `before` images at once hold `after`."""

    kind: str
    position: int
    digest: str
    trouble: str
    before: int = 0
    after: int = 0

    def words(self) -> str:
        if self.kind == "skip":
            done = "rolled back, and the batch is left out"
        elif self.kind == "cut":
            done = f"rolled back, and the learning rate is {CUT:g} of what it was from here on"
        else:
            done = (
                f"a rank now holds {self.after} images at once, not {self.before}: the global "
                "batch stays, BatchNorm sees smaller groups"
            )
        return f"{self.trouble}: {done}"


class Remedies:
    """The remedies of one run."""

    def __init__(self, run_path: Path) -> None:
        self.path = run_path
        try:
            rows = json.loads((run_path / FILE).read_bytes())
            self.taken = [Remedy(**row) for row in rows]
        except FileNotFoundError:
            self.taken = []
        except (ValueError, TypeError) as error:
            raise StokerError(f"{run_path / FILE} is damaged: {error}") from error

    def skips(self, position: int) -> bool:
        return any(r.kind == "skip" and r.position == position for r in self.taken)

    def rate(self, position: int) -> float:
        """The share of the recipe's learning rate that is left at a position."""
        return CUT ** sum(r.kind == "cut" and position >= r.position for r in self.taken)

    def micro_batch(self, recipe: Recipe) -> int:
        """Images a rank holds at once, after all that did not fit."""
        size = recipe.micro_batch
        for remedy in self.taken:
            if remedy.kind == "micro_batch" and (size == 0 or size >= remedy.before):
                size = remedy.after
        return size

    def choose(
        self,
        trouble: Trouble,
        recipe: Recipe,
        *,
        at: int,
        back_to: int,
        holds: int,
        blown_up: bool = False,
    ) -> Remedy:
        """What to do about trouble in the batch at position `at`, going back to `back_to`, with
        `holds` images on a rank at once. Refuses where the recipe says stop, or too often. Where
        the losses had blown up before, no single batch is to blame."""
        digest, seen = recipe.digest(), str(trouble)
        if trouble.kind == MEMORY:
            half = max(holds // 2, SMALLEST_MICRO_BATCH)
            if holds <= SMALLEST_MICRO_BATCH:
                raise StokerError(f"{seen}: not even {holds} images fit; lower --image-size")
            return Remedy("micro_batch", at, digest, seen, before=holds, after=half)
        before = [r for r in self.taken if r.digest == digest and r.kind in ("skip", "cut")]
        where = f"what was seen is in {self.path / 'trouble' / str(trouble.step)}"
        if recipe.on_divergence == "stop":
            raise StokerError(f"{seen}; {where}")
        if len(before) >= recipe.divergence_retries:
            raise StokerError(
                f"{seen}, after {len(before)} roll-backs; {where}; "
                "a lower --lr, --clip-grad or a longer warm-up may help"
            )
        if trouble.kind == EXPLODING or blown_up or recipe.on_divergence == "cut":
            return Remedy("cut", back_to, digest, seen)
        return Remedy("skip", at, digest, seen)

    def take(self, remedy: Remedy) -> None:
        """Put a remedy on record."""
        self.taken.append(remedy)
        write_json(self.path / FILE, [asdict(each) for each in self.taken])


def keep_evidence(run_path: Path, step: int, rank: int, facts: Mapping[str, Any]) -> None:
    """What a rank saw, for whoever wants to know why."""
    folder = run_path / "trouble" / str(step)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"rank{rank}.json", dict(facts))
