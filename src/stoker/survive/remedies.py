"""Remedies for trouble, recorded in the run, so that every later attempt applies them as well.

    remedies.json       the remedies, in the order they were taken
    trouble/STEP/       the evidence, one file per rank

Invariants: a remedy is plain data. One that changes the result applies from a position on, so a run
with remedies is still a pure function of its position. A changed recipe has all its retries again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stoker.commit import write_json
from stoker.errors import StokerError
from stoker.host.plain_file import read_plain
from stoker.recipe.recipe import Recipe
from stoker.text import plural

NOT_FINITE, EXPLODING, MEMORY = "not finite", "exploding", "out of memory"
HIGH = "high from the first step"
"""A loss that was far above guessing before any weight changed, and does not fall."""

FILE = "remedies.json"
CUT = 0.5
"""The factor by which a cut lowers the learning rate."""
SMALLEST_MICRO_BATCH = 2


class Trouble(Exception):
    """Training cannot continue from this step: all ranks agree, or this rank alone knows of it."""

    def __init__(
        self, kind: str, step: int, detail: str, since: int | None = None, *, agreed: bool = True
    ) -> None:
        super().__init__(f"{kind} at step {step}: {detail}")
        self.agreed = agreed
        """Whether all ranks raise it."""
        self.kind, self.step = kind, step
        self.since = step if since is None else since
        """The first bad step: a checkpoint saved after it is bad, too."""


@dataclass(frozen=True)
class Remedy:
    """skip: the batch at `position` is skipped. cut: the learning rate is lower from `position` on.
    micro_batch: a rank that trained on `before` images at once trains on `after`."""

    kind: str
    position: int
    digest: str
    trouble: str
    before: int = 0
    after: int = 0

    def text(self) -> str:
        if self.kind == "skip":
            action = "rolled back; this batch is skipped"
        elif self.kind == "cut":
            action = f"rolled back; the learning rate is multiplied by {CUT:g} from here on"
        else:
            action = (
                f"a rank now trains on {self.after} images at once, not {self.before}; the global "
                "batch is unchanged, BatchNorm sees smaller groups"
            )
        return f"{self.trouble}: {action}"


class Remedies:
    """The remedies of one run. Raises StokerError where remedies.json is damaged."""

    def __init__(self, run_path: Path) -> None:
        self.path = run_path
        try:
            self.taken = [Remedy(**row) for row in json.loads(read_plain(run_path / FILE))]
        except FileNotFoundError:
            self.taken = []
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise StokerError(f"{run_path / FILE} is damaged: {error}") from error

    def skips(self, position: int) -> bool:
        return any(r.kind == "skip" and r.position == position for r in self.taken)

    def lr_factor(self, position: int) -> float:
        """The factor of the recipe's learning rate at a position."""
        return CUT ** sum(r.kind == "cut" and position >= r.position for r in self.taken)

    def micro_batch(self, recipe: Recipe) -> int:
        """The number of images a rank trains on at once, after all remedies; 0: its whole share."""
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
        position: int,
        resume_position: int,
        micro_batch: int,
        exploded: bool = False,
    ) -> Remedy:
        """The remedy for trouble in the batch at `position`; the run resumes at `resume_position`.
        `exploded`: losses were too high before, so no single batch is the cause. Raises StokerError
        if the recipe says stop, the retries are used up, or the smallest micro-batch is too big."""
        digest, message = recipe.digest(), str(trouble)
        if trouble.kind == MEMORY:
            if micro_batch <= SMALLEST_MICRO_BATCH:
                raise StokerError(
                    f"{message}: even {plural(micro_batch, 'image')} at once is too much; "
                    "lower --image-size"
                )
            half = max(micro_batch // 2, SMALLEST_MICRO_BATCH)
            return Remedy("micro_batch", position, digest, message, before=micro_batch, after=half)
        if trouble.kind == HIGH:
            raise StokerError(
                f"{message}; it was so before any weight changed: the weights or their head do not "
                "suit these classes, or the images come with another mean and deviation than the "
                "model expects ('stoker show-batch' shows them)"
            )
        retries = sum(r.digest == digest and r.kind in ("skip", "cut") for r in self.taken)
        evidence = f"evidence in {self.path / 'trouble' / str(trouble.step)}"
        if recipe.on_divergence == "stop":
            raise StokerError(f"{message}; {evidence}")
        if retries >= recipe.divergence_retries:
            raise StokerError(
                f"{message}, after {plural(retries, 'roll-back')}; {evidence}; "
                "try a lower --lr, --clip-grad or a longer warm-up"
            )
        if trouble.kind == EXPLODING or exploded or recipe.on_divergence == "cut":
            return Remedy("cut", resume_position, digest, message)
        return Remedy("skip", position, digest, message)

    def take(self, remedy: Remedy) -> None:
        self.taken.append(remedy)
        write_json(self.path / FILE, [asdict(remedy) for remedy in self.taken])


def keep_evidence(run_path: Path, step: int, rank: int, facts: Mapping[str, Any]) -> None:
    """Write what a rank knew when the trouble came to trouble/STEP/rankN.json."""
    folder = run_path / "trouble" / str(step)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"rank{rank}.json", dict(facts))
