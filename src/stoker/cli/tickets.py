"""stoker tickets DATA --keep 20,10,5: prune, rewind and train again, with controls beside it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stoker.cli.backends import final_code
from stoker.cli.flags import Parser, add_recipe_flags, add_trust_flag
from stoker.cli.streams import check_json, write_figures
from stoker.cli.studies import StudyInputs, add_study_flags, recipes_of
from stoker.commit import write_bytes
from stoker.errors import FINISHED, BadRequest
from stoker.fleet.grid.directory import Grid
from stoker.show.study.sweep import (
    cost_lines,
    failure_lines,
    other_lines,
    spent_seconds,
    status_line,
)
from stoker.show.study.ticket_svg import ticket_svg
from stoker.show.study.tickets import result_lines, size_lines
from stoker.study.results import study_status
from stoker.study.tickets.plan import (
    MOST_REPLICATES,
    TICKET,
    TicketDesign,
    TicketStudy,
    check_design,
    parse_baselines,
    parse_keeps,
    parse_rewinds,
    parse_rounds,
    plan_tickets,
)
from stoker.study.tickets.results import results_of
from stoker.survive.stopping import listening
from stoker.text import say, shown

if TYPE_CHECKING:  # it needs torch
    from stoker.study.tickets.size import TicketSize

PICTURE = "tickets.svg"


def parser() -> Parser:
    tickets = Parser(
        prog="stoker tickets",
        usage="stoker tickets DATA --keep 40,20,10,5,1 [flags]",
        description="Train a model, prune its smallest weights, rewind the others and train again: "
        "is there a small part of it that trains as well as the whole? Random masks and other "
        "random weights are always trained beside it. The same command goes on where it was "
        "stopped.",
        examples=(
            "stoker tickets photos-packed --keep 40,20,10,5,1 --rewind 0,1ep,2ep",
            "stoker tickets photos-packed --recipe tickets-mobilenetv2 --keep 20,5 --workers 2",
        ),
    )
    add = tickets.add_argument
    add("data", metavar="DATA", help="a packed set, or a folder of images")
    add(
        "--keep",
        default="40,20,10,5,1",
        metavar="X,X",
        help="percentages of the kernel weights that are kept [40,20,10,5,1]",
    )
    add(
        "--rewind",
        default="0,1ep",
        metavar="0,Nep",
        help="epochs of dense training that kept weights return to [0,1ep]",
    )
    add("--replicates", type=int, default=3, metavar="N", help="runs of each, by their seeds [3]")
    add(
        "--rounds",
        default="20%",
        metavar="X%|one-shot",
        help="the share of what is left that a round prunes before it trains again, or all at "
        "once [20%%]",
    )
    add(
        "--baselines",
        default="",
        metavar="layer",
        help="layer: also masks of the largest weights of each layer",
    )
    slurm = add_study_flags(tickets, "tickets/SET-RECIPE")
    add("--layers", action="store_true", help="show what each layer keeps")
    add_recipe_flags(tickets)
    tickets.hide([add_trust_flag(tickets), *slurm])
    return tickets


def run(arguments: Sequence[str]) -> int:
    with listening() as stop:
        parsed = parser().parse(arguments)
        check_json(parsed.json)
        if not 1 <= parsed.replicates <= MOST_REPLICATES:
            raise BadRequest(
                f"--replicates must be from 1 to {MOST_REPLICATES}, not {parsed.replicates}"
            )
        design = TicketDesign(
            parse_keeps(parsed.keep),
            parse_rewinds(parsed.rewind),
            parsed.replicates,
            parse_rounds(parsed.rounds),
            parse_baselines(parsed.baselines),
        )
        recipe_with = recipes_of(parsed)
        seed = recipe_with({}).seed
        recipes = [recipe_with({"seed": seed + number}) for number in range(design.replicates)]
        check_design(design, recipes[0])
        inputs = StudyInputs.of(parsed, recipes, "tickets", stop)
        study = plan_tickets(recipes, design, inputs.dataset.fingerprint, inputs.threads)
        code = FINISHED if parsed.status else inputs.run(study.plan, parsed, "tickets", stop)
        show(inputs, study, parsed)
    return final_code(parsed, code)


def show(inputs: StudyInputs, study: TicketStudy, parsed: argparse.Namespace) -> None:
    """Print what the study shows so far, and write its picture and its numbers."""
    grid = inputs.grid
    status = study_status(grid, study.plan)
    results = results_of(study, grid, status)
    figures = results.as_data()
    say(*result_lines(results, layers=parsed.layers))
    if results.done == results.cells and not parsed.status:
        size = size_of(study, grid)
        figures["one_ticket"] = size.as_data()
        say(*size_lines(size))
    figures["seconds_in_cells"] = spent_seconds(grid, status)
    say(status_line(status), *other_lines(status), *cost_lines(grid, status))
    say(*failure_lines(study.plan, grid, status))
    if not parsed.status and (picture := ticket_svg(results, name_of(inputs))):
        write_bytes(grid.path / PICTURE, picture.encode())
        say(f"picture: {shown(str(grid.path / PICTURE))}")
    if parsed.json:
        write_figures(parsed.json, figures)


def name_of(inputs: StudyInputs) -> str:
    return f"{shown(inputs.data.name)}, {inputs.recipes[0].model}"


def size_of(study: TicketStudy, grid: Grid) -> TicketSize:
    """Measure the smallest ticket of the first replicate, from the first rewind point."""
    from stoker.study.tickets.size import measure_size

    keep, rewind = study.design.keeps[-1], study.design.rewinds[0]
    ticket = study.of(TICKET, keep, rewind)[0]
    dense, pruned = (grid.cell_path(cell) / "work" / "run" for cell in (study.dense[0], ticket))
    return measure_size(dense, pruned, keep, rewind)
