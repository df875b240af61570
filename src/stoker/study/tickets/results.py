"""What the cells of a ticket study show, and what they do not.

Invariants: a ticket wins where the 95 % interval of its accuracy lies above those of both controls,
each over at least ENOUGH replicates. Without all replicates of the ticket and its controls there is
no evidence, whatever the means are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stoker.fleet.grid.directory import DONE, Grid, Status
from stoker.intervals import Mean, mean_of
from stoker.run.kinds import Field, Required, Table, dict_of, fits, is_count, is_number, is_whole
from stoker.study.results import damaged, training_result
from stoker.study.sweep import ENOUGH
from stoker.study.tickets.plan import (
    BY_LAYER,
    RANDOM_MASK,
    REINIT,
    TICKET,
    TicketDesign,
    TicketStudy,
)


def is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and is_whole(value[0]) and is_count(value[1])


KEPT: Table = {
    "kept": Field(is_whole, Required),
    "total": Field(is_count, Required),
    "layers": Field(dict_of(is_pair), Required),
}
"""What the result of a ticket says of its mask."""
WEIGHTS: Table = {
    "quantiles": Field(dict_of(is_number), Required),
    "largest": Field(is_number, Required),
    "zeros": Field(is_whole, Required),
    "total": Field(is_count, Required),
    "layers": Field(dict_of(is_count), Required),
}
"""What the result of a dense run says of its weights."""


@dataclass(frozen=True)
class Level:
    """The accuracy at one level and rewind point: of the tickets, and of what they are compared
    with. None where no replicate is done."""

    keep: float
    rewind: float
    ticket: Mean | None
    random: Mean | None
    reinit: Mean | None
    """Of this level; re-initialised weights have no rewind point."""
    by_layer: Mean | None = None

    def is_complete(self, replicates: int) -> bool:
        """Whether all replicates of the ticket and of both controls are done."""
        return all(
            each is not None and each.count == replicates
            for each in (self.ticket, self.random, self.reinit)
        )

    def wins(self, replicates: int) -> bool:
        """Whether the ticket is better than both controls, and not only by chance."""
        if replicates < ENOUGH or not self.is_complete(replicates):
            return False
        assert self.ticket and self.random and self.reinit
        return self.ticket.low > max(self.random.high, self.reinit.high)


@dataclass(frozen=True)
class TicketResults:
    """Everything that a study has measured so far."""

    design: TicketDesign
    dense: Mean | None
    levels: list[Level]
    """By level and rewind point, the largest level first."""
    weights: dict[str, Any]
    """Of the dense run of the first replicate: quantiles of the magnitudes, sizes of the layers;
    empty where it is not done."""
    kept: dict[float, dict[str, Any]]
    """For each level, what the ticket of the first replicate and rewind point keeps, by layer."""
    cells: int
    done: int

    @property
    def wins(self) -> list[Level]:
        return [level for level in self.levels if level.wins(self.design.replicates)]

    def doubts(self) -> list[str]:
        """Why the study is no evidence of a ticket, whatever its means are."""
        reasons = []
        if self.design.replicates < ENOUGH:
            reasons.append(f"it has fewer than {ENOUGH} replicates")
        if self.done < self.cells:
            reasons.append(f"{self.cells - self.done:,} of {self.cells:,} cells are not done")
        return reasons

    def as_data(self) -> dict[str, Any]:
        """All numbers, for a file."""
        return {
            "replicates": self.design.replicates,
            "rewind_epochs": list(self.design.rewinds),
            "a_round": self.design.a_round,
            "cells": self.cells,
            "done": self.done,
            "dense": mean_data(self.dense),
            "levels": [
                {
                    "keep": level.keep,
                    "rewind_epoch": level.rewind,
                    "ticket": mean_data(level.ticket),
                    "random_mask": mean_data(level.random),
                    "reinitialised": mean_data(level.reinit),
                    **({"by_layer": mean_data(level.by_layer)} if self.design.by_layer else {}),
                    "wins": level.wins(self.design.replicates),
                }
                for level in self.levels
            ],
            "not_evidence_because": self.doubts(),
            "weights": self.weights,
            "kept": [{"keep": keep, **facts} for keep, facts in self.kept.items()],
        }


def mean_data(mean: Mean | None) -> dict[str, Any] | None:
    return None if mean is None else {"top1": mean.mean, "half": mean.half, "runs": mean.count}


def results_of(study: TicketStudy, grid: Grid, status: Status) -> TicketResults:
    """The results of the cells that are done."""
    design, first = study.design, study.design.rewinds[0]

    def mean(cells: list[str]) -> Mean | None:
        done = [cell for cell in cells if status.states[cell] == DONE]
        shares = [training_result(grid, cell).share for cell in done]
        return mean_of(shares) if shares else None

    def facts(cell: str, table: Table) -> dict[str, Any]:
        if status.states[cell] != DONE:
            return {}
        result = grid.result(cell)
        if not fits(table)(result):
            raise damaged(grid, cell)
        return {name: result[name] for name in table}

    levels = [
        Level(
            keep,
            rewind,
            mean(study.of(TICKET, keep, rewind)),
            mean(study.of(RANDOM_MASK, keep, rewind)),
            mean(study.of(REINIT, keep, 0.0)),
            mean(study.of(BY_LAYER, keep, rewind)),
        )
        for keep in design.keeps
        for rewind in design.rewinds
    ]
    kept = {k: facts(study.of(TICKET, k, first)[0], KEPT) for k in design.keeps}
    return TicketResults(
        design,
        mean(study.dense),
        levels,
        facts(study.dense[0], WEIGHTS),
        {keep: layers for keep, layers in kept.items() if layers},
        len(status.states),
        status.count(DONE),
    )
