"""A study of lottery tickets: which pruned models train as well as the dense one.

    dense@0 -> dense@1ep -> ... -> dense@end        once for each replicate
    ticket = prune by trained weights, rewind, train again; round after round

Invariants: a level is the share of kernel weights that is kept, and it is met exactly. Rounds prune
a fixed share of what is left, and a level is one last, smaller round after those above it: so what
a level is does not depend on the other levels of a study, and all levels share their rounds. Each
level has its controls: a random mask with as many weights of each layer at each rewind point, and
the ticket's own mask with weights of another random initialisation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.errors import BadRequest
from stoker.fleet.grid.cell import Cell, Plan
from stoker.fleet.grid.directory import own_digest
from stoker.recipe.recipe import Recipe
from stoker.study.frozen import training_meaning
from stoker.study.tickets.cells import LAYERS, MAGNITUDE, RANDOM
from stoker.text import shown

COMMAND = ("{python}", "-P", "-m", "stoker.study.tickets.cells")
"""What runs a cell of a study."""
TICKET, RANDOM_MASK, REINIT, BY_LAYER = "ticket", "random mask", "re-initialised", "by layer"
CONTROLS = (RANDOM_MASK, REINIT)
REINIT_SEED = 1_000_000
"""What is added to the seed of a replicate for other random weights."""
MOST_CELLS, MOST_REPLICATES = 100_000, 1000
ONE_SHOT, LEAST_KEEP = "one-shot", 1e-5


@dataclass(frozen=True)
class TicketDesign:
    """What a study compares."""

    keeps: tuple[float, ...]
    """Shares of the kernel weights that are kept, the largest first."""
    rewinds: tuple[float, ...]
    """Epochs that tickets start from, in order."""
    replicates: int = 3
    a_round: float | None = 0.2
    """The largest share of what is left that a round prunes; None: all at once."""
    by_layer: bool = False
    """Whether masks by the magnitude within each layer are compared, too."""

    def shares(self, keep: float) -> list[float]:
        """What is kept after each round on the way to a level, which is the last."""
        shares: list[float] = []
        while self.a_round is not None:
            share = float(f"{(1 - self.a_round) ** (len(shares) + 1):.12g}")
            if share <= keep:
                break
            shares.append(share)
        return [*shares, keep]


@dataclass(frozen=True)
class Trained:
    """What a cell of a study has trained."""

    kind: str
    keep: float
    rewind: float
    replicate: int


@dataclass
class TicketStudy:
    """The plan of a study, and what its cells are."""

    design: TicketDesign
    plan: Plan = field(default_factory=Plan)
    dense: list[str] = field(default_factory=list)
    """For each replicate, the cell at the end of dense training."""
    cells: dict[str, Trained] = field(default_factory=dict)
    """The cells whose results are compared: not those of rounds between two levels."""

    def of(self, kind: str, keep: float, rewind: float) -> list[str]:
        """The cells of a kind, one for each replicate, in order."""
        wanted = (kind, keep, rewind)
        return [
            cell
            for cell, each in self.cells.items()
            if (each.kind, each.keep, each.rewind) == wanted
        ]


def plan_tickets(
    recipes: Sequence[Recipe], design: TicketDesign, fingerprint: str, threads: int
) -> TicketStudy:
    """The cells of a study, from the recipe of each replicate."""
    study = TicketStudy(design)
    for number, recipe in enumerate(recipes):
        Replicate(study, number, recipe, training_meaning(recipe, fingerprint, threads)).plan()
    return study


def cell_count(design: TicketDesign) -> int:
    """Cells at most."""
    levels, starts = len(design.keeps), len(design.rewinds)
    controls = levels * (starts * (1 + design.by_layer) + 1)
    rounds = len(design.shares(design.keeps[-1])) + levels
    return design.replicates * (starts + 2 + rounds * starts + controls)


def check_design(design: TicketDesign, recipe: Recipe) -> None:
    """Raise BadRequest where a recipe cannot be studied so."""
    if cell_count(design) > MOST_CELLS:
        raise BadRequest(f"this study has {cell_count(design):,} cells; at most {MOST_CELLS:,}")
    if late := next((epoch for epoch in design.rewinds if epoch >= recipe.epochs), None):
        raise BadRequest(
            f"--rewind {late:g}ep is not before the end of training (epochs = {recipe.epochs}): "
            "name earlier epochs"
        )
    if recipe.weights or recipe.pretrained or recipe.freeze:
        raise BadRequest(
            "a ticket study begins with random weights, which its controls draw again: drop "
            "weights, pretrained and freeze from the recipe"
        )


@dataclass
class Replicate:
    """Plans the cells of one replicate."""

    study: TicketStudy
    number: int
    recipe: Recipe
    meaning: dict[str, Any]
    sources: str = field(default_factory=own_digest)

    def plan(self) -> None:
        design, starts = self.study.design, self._dense()
        source = self.study.dense[-1]
        for rewind in design.rewinds:
            for keep in design.keeps:
                trained, start = source, starts[rewind]
                for share in design.shares(keep)[:-1]:
                    trained = self._ticket(TICKET, share, rewind, (start, trained))
                self._compare(TICKET, keep, rewind, (start, trained))
                self._compare(RANDOM_MASK, keep, rewind, (start, trained))
                if rewind == design.rewinds[0]:
                    self._compare(REINIT, keep, 0.0, (starts[0.0], trained))
                if design.by_layer:
                    self._compare(BY_LAYER, keep, rewind, (start, source))

    def _dense(self) -> dict[float, str]:
        """Add the dense run; returns the cell of each epoch that something starts from."""
        starts: dict[float, str] = {}
        parents: tuple[str, ...] = ()
        for until in (*sorted({0.0, *self.study.design.rewinds}), None):
            at = "the end" if until is None else f"epoch {until:g}"
            meaning = {**self.meaning, "do": "dense"}
            if until is not None:
                meaning["until"] = until
            cell = self._add(f"dense to {at}", meaning, parents)
            parents = (cell,)
            if until is None:
                self.study.dense.append(cell)
            else:
                starts[until] = cell
        return starts

    def _compare(self, kind: str, keep: float, rewind: float, parents: tuple[str, str]) -> None:
        cell = self._ticket(kind, keep, rewind, parents)
        self.study.cells[cell] = Trained(kind, keep, rewind, self.number)

    def _ticket(self, kind: str, keep: float, rewind: float, parents: tuple[str, str]) -> str:
        masks = {TICKET: MAGNITUDE, REINIT: MAGNITUDE, RANDOM_MASK: RANDOM, BY_LAYER: LAYERS}
        meaning = {**self.meaning, "do": "ticket", "mask": masks[kind], "keep": keep}
        if kind == REINIT:
            meaning["weights_seed"] = self.recipe.seed + REINIT_SEED
        label = f"{kind}, {percent(keep)} kept, from epoch {rewind:g}"
        return self._add(label, meaning, parents)

    def _add(self, label: str, meaning: dict[str, Any], parents: tuple[str, ...]) -> str:
        cell = Cell(f"run {self.number + 1}: {label}", COMMAND, meaning, parents, self.sources)
        return self.study.plan.add(cell)


def percent(share: float) -> str:
    """A share as a short percentage: 20 %, 1.5 %."""
    return f"{100 * share:.3g} %"


def parse_keeps(text: str) -> tuple[float, ...]:
    """The shares of `--keep`, the largest first. Raises BadRequest."""
    shares = sorted({number / 100 for number in numbers_of("--keep", text, "%")}, reverse=True)
    if not shares or not all(LEAST_KEEP <= share < 1 for share in shares):
        raise BadRequest(
            f"--keep {shown(text)}: percentages from 0.001 to 99.999, such as 50,20,10"
        )
    return tuple(shares)


def parse_rewinds(text: str) -> tuple[float, ...]:
    """The epochs of `--rewind`, in order. Raises BadRequest."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if bare := next((word for word in words if not word.endswith("ep") and word != "0"), None):
        raise BadRequest(f"--rewind {shown(bare)}: write epochs, such as 0,1ep,2ep")
    epochs = sorted(set(numbers_of("--rewind", text, "ep")))
    if not epochs or epochs[0] < 0:
        raise BadRequest(f"--rewind {shown(text)}: write epochs from 0, such as 0,1ep,2ep")
    return tuple(epochs)


def parse_rounds(text: str) -> float | None:
    """The largest share that a round prunes; None for `one-shot`. Raises BadRequest."""
    if text == ONE_SHOT:
        return None
    number = list(numbers_of("--rounds", text, "%"))
    if len(number) != 1 or not text.strip().endswith("%") or not 1 <= number[0] <= 90:
        raise BadRequest(
            f"--rounds {shown(text)}: one-shot, or the share that a round prunes, from 1% to 90%"
        )
    return number[0] / 100


def numbers_of(flag: str, text: str, unit: str) -> Iterator[float]:
    """The numbers of a list, with or without their unit. Raises BadRequest."""
    for word in filter(None, (word.strip() for word in text.split(","))):
        try:
            number = float(word.removesuffix(unit))
        except ValueError as error:
            raise BadRequest(f"{flag} {shown(word)} is not a number") from error
        if not math.isfinite(number):
            raise BadRequest(f"{flag} {shown(word)} is not a number")
        yield number


def parse_baselines(text: str) -> bool:
    """Whether `--baselines` names layer-wise magnitude. Raises BadRequest for another one."""
    if text not in ("", "layer"):
        raise BadRequest(f"--baselines {shown(text)}: the only further baseline is 'layer'")
    return bool(text)
