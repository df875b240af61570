"""A ticket study as the folder of its grid records it, without the command that planned it.

Invariants: what a cell is follows from its meaning and its parents alone. How much a round prunes
is not known from a plan, and the design keeps its default. Files are read, none is written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from stoker.errors import BadRequest
from stoker.fleet.grid.cell import Plan
from stoker.study.recorded import kinds_of
from stoker.study.tickets.cells import LAYERS, RANDOM
from stoker.study.tickets.plan import (
    BY_LAYER,
    RANDOM_MASK,
    REINIT,
    TICKET,
    TicketDesign,
    TicketStudy,
    Trained,
)

DENSE, PRUNED = "dense", "ticket"
"""What a cell of a study does."""


def is_ticket_study(plan: Plan) -> bool:
    """Whether a plan is that of a ticket study."""
    return kinds_of(plan) == {DENSE, PRUNED}


def tickets_of(plan: Plan) -> TicketStudy:
    """The ticket study of a plan. Raises BadRequest where the cells do not make one."""
    try:
        return _tickets_of(plan)
    except (LookupError, TypeError, ValueError) as error:
        raise BadRequest("the plan is no ticket study: start the grid's command again") from error


def _tickets_of(plan: Plan) -> TicketStudy:
    dense = [
        name
        for name, cell in plan.cells.items()
        if cell.meaning["do"] == DENSE and "until" not in cell.meaning
    ]
    numbers = {identity_of(plan.cells[name].meaning): place for place, name in enumerate(dense)}
    trained: dict[str, Trained] = {}
    for name, cell in plan.cells.items():
        if cell.meaning["do"] == PRUNED:
            rewind = float(plan.cells[cell.parents[0]].meaning["until"])
            number = numbers[identity_of(cell.meaning)]
            keep = float(cell.meaning["keep"])
            trained[name] = Trained(kind_of(cell.meaning), keep, rewind, number)
    controls = [each for each in trained.values() if each.kind == RANDOM_MASK]
    keeps = tuple(sorted({each.keep for each in controls}, reverse=True))
    design = TicketDesign(
        keeps,
        tuple(sorted({each.rewind for each in controls})),
        len(dense),
        by_layer=any(each.kind == BY_LAYER for each in trained.values()),
    )
    cells = {name: each for name, each in trained.items() if each.keep in keeps}
    if not cells or not dense:
        raise ValueError("no controls")
    return TicketStudy(design, plan, dense, cells)


def kind_of(meaning: Mapping[str, Any]) -> str:
    """What a pruned cell is."""
    if "weights_seed" in meaning:
        return REINIT
    return {RANDOM: RANDOM_MASK, LAYERS: BY_LAYER}.get(meaning["mask"], TICKET)


def identity_of(meaning: Mapping[str, Any]) -> str:
    """A text that the cells of one replicate share: their recipe."""
    return json.dumps(meaning["values"], sort_keys=True)
