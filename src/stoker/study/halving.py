"""Successive halving: all settings train for a few epochs, the best of them go on for longer.

    rung 0 cells -> choice -> rung 1 cells -> choice -> ...

Invariants: which settings go on follows from the results of the rung before; a cell of a later rung
is a place in the ranking, so the graph is known before anything runs. A rung goes on from the last
checkpoint of the one before: in the end the best settings have trained exactly as they would have
without rungs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker.errors import BadRequest
from stoker.fleet.grid.cell import Cell
from stoker.fleet.grid.directory import Grid, own_digest
from stoker.study.frozen import COMMAND, training_meaning
from stoker.study.results import mean_share, training_result
from stoker.study.sweep import Sweep, Trial, label_of, settings_of
from stoker.survive.stopping import StopRequest

Ids = list[list[str]]
"""The cells of a rung: a list for each settings, of its replicates."""


def rungs(settings: int, epochs: int, factor: int) -> list[tuple[int, int]]:
    """For each rung, how many settings it has and after which epoch it ends. Raises BadRequest."""
    if factor < 2:
        raise BadRequest(f"--halving must be at least 2, not {factor}")
    if settings < factor:
        raise BadRequest(
            f"--halving {factor} keeps one of {factor} settings, and there are {settings}: name "
            "more values, or drop --halving"
        )
    count = min(int(math.log(settings, factor) + 1e-9), int(math.log(epochs, factor) + 1e-9))
    if count < 1:
        raise BadRequest(f"--halving {factor} needs at least {factor} epochs, not {epochs}")
    kept = [settings]
    for _ in range(count):
        kept.append(-(-kept[-1] // factor))
    return [(kept[n], -(-epochs // factor ** (count - n))) for n in range(count + 1)]


def plan_halving(trials: Sequence[Trial], fingerprint: str, threads: int, factor: int) -> Sweep:
    """The cells of all rungs. Raises BadRequest where the trials cannot be compared."""
    groups: dict[str, list[Trial]] = {}
    for point, recipe in trials:
        groups.setdefault(label_of(settings_of(point)), []).append((point, recipe))
    epochs = {recipe.epochs for _, recipe in trials}
    if len(epochs) > 1:
        raise BadRequest("--halving compares settings after the same epochs: do not vary epochs")
    ladder = rungs(len(groups), epochs.pop(), factor)
    sweep, sources = Sweep(), own_digest()
    cells: Ids = []
    for group in groups.values():
        cells.append([])
        for point, recipe in group:
            meaning = {**training_meaning(recipe, fingerprint, threads), "until": ladder[0][1]}
            label = f"{label_of(point)}, epoch {ladder[0][1]}"
            cell = sweep.plan.add(Cell(label, COMMAND, meaning, (), sources))
            sweep.cells[cell] = point
            cells[-1].append(cell)
    for number, (count, until) in enumerate(ladder[1:], 1):
        cells = add_rung(sweep, cells, number, count, until, sources)
    return sweep


def add_rung(sweep: Sweep, before: Ids, number: int, count: int, until: int, sources: str) -> Ids:
    """Add the choice among the cells of a rung, and the cells of the next one."""
    parents = tuple(cell for group in before for cell in group)
    choice = Cell(
        f"choice {number}",
        COMMAND,
        {"do": "choose", "keep": count, "groups": before},
        parents,
        sources,
    )
    chosen = sweep.plan.add(choice)
    rung: Ids = []
    for place in range(count):
        rung.append([])
        for replicate in range(len(before[0])):
            meaning = {"do": "go_on", "place": place, "replicate": replicate, "until": until}
            label = f"rung {number}, place {place + 1}, run {replicate + 1}, epoch {until}"
            cell = sweep.plan.add(Cell(label, COMMAND, meaning, (chosen,), sources))
            rung[-1].append(cell)
            sweep.later[cell] = number
    return rung


def choose_cell(folder: Path, meaning: Mapping[str, Any], stop: StopRequest) -> dict[str, Any]:
    """The best groups by their mean top-1, equal ones in the order of the plan; for each group, the
    cells whose runs go on, and those in which they began."""
    grid = Grid(folder.parent.parent)
    results = [[training_result(grid, cell) for cell in group] for group in meaning["groups"]]
    means = [mean_share(group) for group in results]
    best = sorted(range(len(means)), key=lambda n: -means[n])[: meaning["keep"]]
    return {
        "chosen": [
            {
                "cells": meaning["groups"][n],
                "began": [result.began for result in results[n]],
            }
            for n in best
        ]
    }
